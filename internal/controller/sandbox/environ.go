package sandbox

import (
	"regexp"
	"strings"
)

// secretName is what variables with keys are called.
var secretName = regexp.MustCompile(`(?i)(^|_)(key|keys|token|secret|secrets|passphrase|pat|credential|credentials|auth|cookie|dsn|connection_string|webhook)($|_)|apikey|passwd|password|_pwd$|^(pgpass|database_url|docker_host|kubeconfig|ssh_auth_sock|gpg_agent_info|dbus_session_bus_address|xdg_runtime_dir|xauthority|display|wayland_display)`)

// secretValue is an address with a password in it.
var secretValue = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]*:[^/\s@]+@`)

// proxies lead to a network that is not there, and away from the relay.
var proxies = []string{"http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy"}

// Environ returns the variables of this process that agents may have: none that
// is called like a key, holds an address with a password, names a socket of this
// machine, or leads to a proxy.
func Environ(environ []string) []string {
	out := make([]string, 0, len(environ))
next:
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if secretName.MatchString(name) || secretValue.MatchString(value) {
			continue
		}
		for _, p := range proxies {
			if strings.EqualFold(name, p) {
				continue next
			}
		}
		out = append(out, kv)
	}
	return out
}
