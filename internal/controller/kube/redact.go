package kube

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/controller"
)

// mark is what a Job says of a credential: a hash by which a later controller, which
// never had it, still knows it when it sees it.
func mark(secret string) string { return hash("credential", secret)[:32] }

// marks are those of an attempt's credentials, each with its length: HASH.BYTES,….
func marks(secrets []string) string {
	out := make([]string, len(secrets))
	for i, s := range secrets {
		out[i] = fmt.Sprintf("%s.%d", mark(s), len(s))
	}
	return strings.Join(out, ",")
}

// marked finds the credentials of these marks in a text; ok is false where they are
// no marks.
func marked(marks, text string) (secrets []string, ok bool) {
	for m := range strings.SplitSeq(marks, ",") {
		sum, size, _ := strings.Cut(m, ".")
		n, err := strconv.Atoi(size)
		if err != nil || n <= 0 {
			return nil, marks == ""
		}
		for i := range len(text) - n + 1 {
			if s := text[i : i+n]; mark(s) == sum {
				secrets = append(secrets, s)
				break
			}
		}
	}
	return secrets, true
}

const unmarked = "what it said is not shown: its Job has no mark of its credential, by which that would be taken out"

// redactorLocked takes an attempt's credentials out of what it says. An adopted one's
// are known by their marks alone; one that has none,
// of another version, may say them, so that nothing it says is shown.
func (a *attempt) redactorLocked() func(text string) string {
	if !a.adopted {
		secrets := a.secrets
		return func(text string) string { return string(controller.Redact([]byte(text), secrets)) }
	}
	note, there := a.job.Annotations[noteCredential]
	return func(text string) string {
		secrets, ok := marked(note, text)
		if text != "" && (!ok || !there) {
			return unmarked
		}
		return string(controller.Redact([]byte(text), secrets))
	}
}
