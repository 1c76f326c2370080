package container

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each thing that the probe in a container looks at, where its guard is off: this
// machine has a network, and the gateway is on it.
func TestProbeEscapesWithoutItsGuards(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			http.NotFound(w, r)
		}
	}))
	defer up.Close()
	interfaces := 0
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			interfaces++
		}
	}
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"the gateway past the relay":            {[]string{up.URL + "/healthz", up.URL}, probeEscaped, "can be reached past the relay"},
		"an interface":                          {[]string{up.URL + "/healthz", "http://127.0.0.1:1"}, probeEscaped, "it has a network interface"},
		"nothing to be kept from":               {[]string{up.URL + "/healthz"}, 0, ""},
		"no gateway":                            {[]string{"http://127.0.0.1:1/healthz"}, probeUnreached, "refused"},
		"something else at the gateway's place": {[]string{up.URL + "/other"}, probeUnreached, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "an interface" && interfaces == 0 {
				t.Skip("this machine has no interface but its own")
			}
			code, err := probe(test.args)
			if code != test.code || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%d, %v; want %d, %q", code, err, test.code, test.says)
			}
		})
	}
}
