package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/fulgur-rl/fulgur"
	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// Keep says which files of attempts stay with a runner that writes some.
type Keep string

// The policies.
const (
	KeepFailures Keep = "failures" // of attempts that did not go well
	KeepAll      Keep = "all"
	KeepNone     Keep = "none"
)

// InputMode says how an agent gets its input beside its environment.
type InputMode string

// The input modes.
const (
	ByEnv   InputMode = ""      // by the mapped variables alone
	ByFile  InputMode = "file"  // as JSON in the file that FULGUR_INPUT_FILE names
	ByStdin InputMode = "stdin" // as JSON on standard input
)

// CheckFiles refuses, as KindInvalid, an unknown mode or policy, and files without the
// folder state to be in; an empty policy becomes KeepFailures.
func CheckFiles(op, state string, input InputMode, workspace bool, policies ...*Keep) error {
	bad := func(msg string) error { return fulgur.E(fulgur.KindInvalid, op, msg, nil) }
	switch input {
	case ByEnv, ByFile, ByStdin:
	default:
		return bad(fmt.Sprintf("agent.input %q is none of env, file, stdin", input))
	}
	if state == "" && (workspace || input == ByFile) {
		return bad("a workspace and an input file need a folder to be in")
	}
	for _, k := range policies {
		switch *k {
		case "":
			*k = KeepFailures
		case KeepFailures, KeepAll, KeepNone:
		default:
			return bad(fmt.Sprintf("%q is none of failures, all, none", *k))
		}
	}
	return nil
}

var (
	plainRollout = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$`)
	plainAttempt = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`) // no dot: the last one ends the rollout's
)

// FileName is a name for an attempt's files: its ids where they are fit for one,
// else a hash of them (v1 takes any id). No two attempts share one.
func FileName(k plan.Key) string {
	if plainRollout.MatchString(string(k.Rollout)) && plainAttempt.MatchString(string(k.Attempt)) {
		return string(k.Rollout) + "." + string(k.Attempt)
	}
	sum := sha256.Sum256([]byte(string(k.Rollout) + "\x00" + string(k.Attempt)))
	return "id-" + hex.EncodeToString(sum[:12])
}

// WriteLog blots secrets out of an attempt's log, writes it below state ("": it is
// not written) if the policy keeps it, and returns its last lines; "": it is empty, or
// that of an attempt that went well, and not kept. path is "" where nothing was written; an error
// says why not, and names the file.
func WriteLog(state string, policy Keep, key plan.Key, log []byte, secrets []string, good bool) (tail, path string, err error) {
	if len(log) == 0 || good && policy != KeepAll {
		return "", "", nil
	}
	log = Redact(log, secrets)
	tail = LastLines(log)
	if state == "" || policy == KeepNone {
		return tail, "", nil
	}
	path = filepath.Join(state, "logs", FileName(key)+".log")
	err = os.WriteFile(path, log, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = os.WriteFile(path, log, 0o600)
		}
	}
	if err != nil {
		return tail, "", err
	}
	return tail, path, nil
}
