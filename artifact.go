package fulgur

import "time"

// Artifact is a file that an attempt has left with the server: what was in its
// agent's workspace, say. It is written once.
type Artifact struct {
	Name      string    `json:"name"`
	Size      int64     `json:"size"` // bytes
	SHA256    string    `json:"sha256"`
	CreatedAt time.Time `json:"created_at"`
}
