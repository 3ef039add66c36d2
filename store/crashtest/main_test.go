package crashtest

import (
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

// TestMain exempts what a fenced database leaves behind: its goroutines are
// parked on purpose, since nothing may be changed any more.
func TestMain(m *testing.M) {
	testenv.Main(m, func(stack string) bool {
		return strings.Contains(stack, "cockroachdb/pebble") || strings.Contains(stack, "ugds/meta.park")
	})
}
