//go:build race

package trainer

// raceDetector says that tests run many times slower.
const raceDetector = true
