package testenv

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/dma"
)

// settle is how long Main waits for goroutines that are about to end.
const settle = 20 * time.Second

// Main runs the tests and fails the binary when goroutines, descriptors or
// off-heap bytes are left over. Use it as the whole of TestMain. The function
// exempt, if given, names goroutines that may stay: it sees a stack.
func Main(m *testing.M, exempt ...func(stack string) bool) {
	if !flag.Parsed() {
		flag.Parse()
	}
	fds := openFDs()
	code := m.Run()
	if code == 0 {
		if left := leaks(fds, exempt); len(left) > 0 {
			fmt.Println("LEAK: after all tests:\n" + strings.Join(left, "\n"))
			code = 1
		}
	}
	os.Exit(code)
}

func leaks(fds map[string]string, exempt []func(string) bool) []string {
	var left []string
	for end := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		left = append(goroutines(exempt), newFDs(fds)...)
		for _, u := range dma.Usage() {
			left = append(left, fmt.Sprintf("%d off-heap bytes of %q", u.Bytes, u.Owner))
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// goroutines lists the stacks that are not the runtime's, the test framework's
// or exempt.
func goroutines(exempt []func(string) bool) []string {
	buf := make([]byte, 64<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for i, s := range strings.Split(string(buf), "\n\n") {
		if i == 0 || ignored(s, exempt) { // the first is this one
			continue
		}
		out = append(out, s)
	}
	return out
}

func ignored(stack string, exempt []func(string) bool) bool {
	for _, f := range exempt {
		if f(stack) {
			return true
		}
	}
	for _, s := range []string{"testing.(*M).", "os/signal.", "runtime.ensureSigM", "runtime.ReadTrace"} {
		if strings.Contains(stack, s) {
			return true
		}
	}
	return false
}

func openFDs() map[string]string {
	out := make(map[string]string)
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	for _, e := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out[e.Name()] = to
		}
	}
	return out
}

// newFDs lists descriptors that were not open before the tests. The runtime's
// own poller is not counted.
func newFDs(before map[string]string) []string {
	var out []string
	for n, to := range openFDs() {
		if before[n] != "" || strings.Contains(to, "[eventpoll]") || strings.Contains(to, "[eventfd]") ||
			strings.Contains(to, "[pidfd]") || strings.HasPrefix(to, "/proc/") {
			continue
		}
		out = append(out, "descriptor "+n+" → "+to)
	}
	return out
}
