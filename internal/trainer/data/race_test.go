//go:build race

package data

// raceDetector says that pointers are checked: what is a panic else ends the process then.
const raceDetector = true
