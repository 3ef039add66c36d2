//go:build !race

package dma_test

const raceEnabled = false
