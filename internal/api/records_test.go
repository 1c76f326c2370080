package api_test

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/api"
)

// fill gives all that v holds a value that is not its zero: a field that is new, and
// forgotten somewhere, shows.
func fill(v reflect.Value, text string) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1_700_000_000, 5000).UTC()))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{"a":[1,"é"]}`))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(8)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(-0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), text)
		}
	case reflect.Map:
	default:
		panic(v.Type().String())
	}
}

func TestRecordsAreWhatJSONMakesOfThem(t *testing.T) {
	var full, odd fulgur.Record
	fill(reflect.ValueOf(&full).Elem(), "plain words")
	fill(reflect.ValueOf(&odd).Elem(), "\"quoted\" \\ <b>&amp;</b> 北京 \n\x00 \xff \u2028")
	nan := float32(math.NaN())
	full.Calls[0].LogProbs = []float32{nan, -1e-7, float32(math.Inf(-1))}
	odd.Calls[0].Request = json.RawMessage("no JSON")
	odd.Calls[1].Messages[0].ToolCalls = nil
	for name, records := range map[string][]fulgur.Record{
		"none": {}, "one without calls": {{}}, "calls without anything": {{Calls: make([]fulgur.Call, 2)}}, "all": {full, odd},
		"lists that are empty": {{Calls: []fulgur.Call{{PromptIDs: []int32{}, Messages: []fulgur.Message{}, LogProbs: []float32{}}}}},
	} {
		b, err := api.AppendRecords(nil, records)
		if err != nil {
			t.Fatal(err)
		}
		wire := make([]api.Record, len(records))
		for i := range records {
			wire[i] = api.Record{Rollout: records[i].Rollout, Calls: api.WireCalls(records[i].Calls)}
		}
		w, err := json.Marshal(wire)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v: %s", name, err, b)
		}
		if err := json.Unmarshal(w, &want); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
