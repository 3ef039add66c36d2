package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/unix"
)

// openTerminal makes a terminal of 80 columns: who watches, and what programs write to.
func openTerminal(t *testing.T) (watch, screen *os.File) {
	t.Helper()
	watch, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { watch.Close() })
	fd := unix.NewFD(int(watch.Fd()), "/dev/ptmx") // the file closes it
	var unlock, number int32
	size := [4]uint16{24, 80}
	for _, err := range []error{unix.Ioctl(fd, syscall.TIOCSPTLCK, &unlock), unix.Ioctl(fd, syscall.TIOCGPTN, &number),
		unix.Ioctl(fd, syscall.TIOCSWINSZ, &size)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	return watch, screen
}

// TestTerminal: a bar shows on a terminal, within its width, and is gone at the
// end; with --json, on a dumb one, and off a terminal there is none.
func TestTerminal(t *testing.T) {
	for _, c := range []struct {
		term, flag string
		bar        bool
	}{{"xterm", "--wait=1s", true}, {"dumb", "--wait=1s", false}, {"xterm", "--json", false}} {
		dir := newStore(t)
		watch, screen := openTerminal(t)
		cmd := program(t, "put", "--store", dir, "k", "-", c.flag)
		cmd.Env = append(cmd.Env, "TERM="+c.term)
		cmd.Stderr = screen
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if !begin(t, dir, cmd) {
			t.Fatal("put ended by itself")
		}
		screen.Close()
		shown := make(chan string)
		var seen atomic.Bool
		go func() {
			var all strings.Builder
			buf := make([]byte, 4096)
			for {
				n, err := watch.Read(buf)
				all.Write(buf[:n])
				seen.Store(strings.Contains(all.String(), "MiB"))
				if err != nil { // the program has ended
					shown <- all.String()
					return
				}
			}
		}()
		for i := 0; i < 8 || c.bar && !seen.Load() && i < 80; i++ {
			if _, err := in.Write(make([]byte, 512<<10)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s %s: %v", c.term, c.flag, err)
		}
		out := <-shown
		if got := strings.Contains(out, "put ") && strings.Contains(out, "MiB"); got != c.bar || !c.bar && out != "" {
			t.Errorf("%s %s: %q", c.term, c.flag, out)
		}
		if c.bar && !strings.HasSuffix(out, "\x1b[1A\x1b[J") && !strings.HasSuffix(out, "\x1b[J") {
			t.Errorf("the bar is left: %q", out)
		}
		for line := range strings.SplitSeq(out, "\n") {
			if i := strings.LastIndex(line, "\x1b[J"); i >= 0 && len(line)-i > 80+5 {
				t.Errorf("a line of more than 80 columns: %q", line)
			}
		}
	}
}

// TestTerminalSteps: what is counted in steps is not shown as bytes.
func TestTerminalSteps(t *testing.T) {
	watch, screen := openTerminal(t)
	cmd := program(t, "bench", "--dir", filepath.Join(t.TempDir(), "b"), "--op", "put", "--size", "4KiB", "--bytes", "1MiB", "--rounds", "8", "--against", "raw")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	cmd.Stderr = screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	screen.Close()
	shown, _ := io.ReadAll(watch) // ends with an error when the program has ended
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	if out := string(shown); !strings.Contains(out, "bench ") || !strings.Contains(out, " of 16 [") || strings.Contains(out, "b/s\r\n\x1b[1A\x1b[Jbench") {
		t.Errorf("%q", out)
	}
}
