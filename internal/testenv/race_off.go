//go:build !race

package testenv

// Race tells that the race detector is built in: it makes a test five to twenty
// times slower, so that some run fewer rounds.
const Race = false
