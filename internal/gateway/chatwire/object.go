package chatwire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fulgur-rl/fulgur"
)

// ReadObject decodes a request's body, which has to be one JSON object with no
// field twice, nor do the objects in it; an empty body is the empty object. refusal says in words for the
// client why nobody could read it, "" if one can. wrong is encoding/json's
// complaint of a field's type; the other fields are read all the same.
func ReadObject(body []byte, into any) (object []byte, refusal string, wrong error) {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	all, err := decode(body, into) // checks the whole body before anything else
	var syntax *json.SyntaxError
	if all == nil && !validUTF8(body) || errors.As(err, &syntax) {
		return nil, "Invalid JSON in request body", nil
	}
	if c := bytes.TrimLeft(body, " \t\r\n")[0]; c != '{' {
		return nil, "Request body must be a JSON object", nil
	}
	if all == nil && fulgur.TooDeep(body) {
		return nil, Deep, nil
	}
	if again := Twice(body); again != "" {
		return nil, again, nil
	}
	return body, "", err
}

// Deep refuses what is fulgur.TooDeep.
const Deep = "The request body is nested more than 500 deep: nobody could read its record"

// Twice refuses a body with a field that stands twice, "" if there is none.
func Twice(body []byte) (refusal string) {
	if at, again := Repeated(body); again {
		return fmt.Sprintf("The field %q stands twice in the request body: send it once", at)
	}
	return ""
}
