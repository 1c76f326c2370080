package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/fulgur-rl/fulgur/internal/controller/plan"
)

// What our objects are known by. The first three are v1's. Labels hold ids where
// those are legal values, else a hash of them; annotations hold them as they are.
const (
	labelManaged = "app.kubernetes.io/managed-by"
	labelRollout = "agentlightning/rollout-id"
	labelAttempt = "agentlightning/attempt-id"
	labelScope   = "fulgur/scope"
	labelRun     = "fulgur/run"
	labelProbe   = "fulgur/probe"

	noteRollout    = "fulgur/rollout-id"
	noteAttempt    = "fulgur/attempt-id"
	noteCredential = "fulgur/credential" // marks of what the attempt holds (marks)
	noteAgent      = "fulgur/agent"      // the container that is the agent

	managedBy = "agentlightning"
)

var (
	plainID    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,49}[a-z0-9])?$`)
	legalLabel = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	notDNS     = regexp.MustCompile(`[^a-z0-9]+`)
)

// jobName is the name of an attempt's Job: v1's for the first attempt of an id
// that is fit for one, else hashedName. The two have different beginnings, so
// that no id can be made to have another's name.
func jobName(scope string, key plan.Key) string {
	if key.Attempt == "0" && plainID.MatchString(string(key.Rollout)) {
		return "agl-rollout-" + string(key.Rollout)
	}
	return hashedName(scope, key)
}

// hashedName is a legal name of at most 63 characters, told apart by 96 bits of a
// hash over scope and key; some of the id is in it, for people.
func hashedName(scope string, key plan.Key) string {
	slug := strings.Trim(notDNS.ReplaceAllString(strings.ToLower(string(key.Rollout)), "-"), "-")
	if len(slug) > 22 {
		slug = strings.Trim(slug[:22], "-")
	}
	if slug != "" {
		slug += "-"
	}
	return "agl-attempt-" + slug + hash(scope, string(key.Rollout), string(key.Attempt))[:24]
}

// labelValue is s where that is a legal value of a label, else a hash of it.
func labelValue(s string) string {
	if legalLabel.MatchString(s) {
		return s
	}
	return "id-" + hash(s)[:32]
}

// hash is the SHA-256 of parts, in hexadecimal.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
