package openaichat

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// A dialect that remembers lists of tools reads them as one that does not.
func TestRememberedToolsAreTheSame(t *testing.T) {
	remembers := New()
	bodies := []string{
		`{"tools":[{"type":"function","function":{"name":"a","parameters":{"z":1,"a":2}}},{"type":"web_search"}],"messages":[{"role":"user","content":"x"}]}`,
		`{"tools":[{"type":"function","function":{"name":"a","parameters":{"a":2,"z":1}}}],"messages":[{"role":"user","content":"x"}]}`,
		`{"tools":[{"type":"function","function":{}},7],"messages":[{"role":"user","content":"x"}]}`,
		`{"tools":{"a":1},"messages":[{"role":"user","content":"x"}]}`,
		`{"tools":null,"messages":[{"role":"user","content":"x"}]}`,
		`{"tools":[],"messages":[{"role":"user","content":"x"}]}`,
	}
	for i := range 200 { // more than is remembered
		bodies = append(bodies, fmt.Sprintf(`{"tools":[{"type":"function","function":{"name":"f%d","description":%q}}],"messages":[]}`, i, strings.Repeat("x", 100<<10)))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, b := range bodies[:20] {
				if _, err := remembers.Parse([]byte(b)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, b := range append(bodies, bodies...) {
		got, err := remembers.Parse([]byte(b))
		if err != nil {
			t.Fatal(err)
		}
		want, err := Dialect{}.Parse([]byte(b))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(want, got) {
			t.Errorf("%.80s: %+v, want %+v", b, got, want)
		}
	}
	if remembers.tools.bytes > maxToolBytes {
		t.Errorf("%d bytes are remembered", remembers.tools.bytes)
	}
}
