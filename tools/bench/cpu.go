package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cpuSeconds is the processor time of all threads of this process, in seconds,
// as the scheduler counts it; false where the kernel does not tell.
func cpuSeconds() (float64, bool) {
	files, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil || len(files) == 0 {
		return 0, false
	}
	var sum int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return float64(sum) / 1e9, true
}
