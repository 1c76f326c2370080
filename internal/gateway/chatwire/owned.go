package chatwire

import (
	"encoding/json"
	"fmt"
)

// Unread names a field of a request on which the reading of its answer depends, and
// that can't be read where a lax server may: "2" for two answers, "yes" for a stream.
// "" if there is none.
func Unread(body []byte) string {
	for _, f := range []struct {
		key  string
		into any
		want string
	}{{"n", new(int), "a whole number"}, {"stream", new(bool), "true or false"}} {
		if raw := Get(body, f.key); len(raw) > 0 && json.Unmarshal(raw, f.into) != nil {
			return fmt.Sprintf("The field %q must be %s", f.key, f.want)
		}
	}
	return ""
}
