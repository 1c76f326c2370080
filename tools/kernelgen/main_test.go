package main

import "testing"

// The committed kernels are what the generator writes.
func TestFilesAreCurrent(t *testing.T) {
	if err := run("../../internal/engine/embedded/kernel", true); err != nil {
		t.Fatal(err)
	}
}
