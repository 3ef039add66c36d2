package statpage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/statpage"
	"github.com/ugds-store/ugds/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type doc struct {
	A, B int64  // always equal
	Pad  string // of changing length
}

// TestReadWhileWritten: what is read is always one of the documents, whole.
func TestReadWhileWritten(t *testing.T) {
	var n atomic.Int64
	p, err := statpage.Publish(func() any {
		v := n.Add(1)
		return doc{v, v, strings.Repeat("x", int(v%3000))}
	}, statpage.MinEvery)
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	begin := time.Now()
	for time.Since(begin) < 300*time.Millisecond || last < 2 && time.Since(begin) < time.Minute {
		pages, err := statpage.Read(os.Getpid())
		if err != nil || len(pages) != 1 {
			t.Fatalf("%d pages, %v", len(pages), err)
		}
		var d doc
		if err := json.Unmarshal(pages[0].Body, &d); err != nil {
			t.Fatal(err)
		}
		if d.A != d.B || int(d.A%3000) != len(d.Pad) || d.A < last {
			t.Fatalf("a mixed document: %d, %d, %d bytes, after %d", d.A, d.B, len(d.Pad), last)
		}
		last = d.A
	}
	if last < 2 {
		t.Error("the document never changed")
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Fatal(err)
	}
	if pages, err := statpage.Read(os.Getpid()); err != nil || len(pages) != 0 {
		t.Fatalf("after close: %d pages, %v", len(pages), err)
	}
}

// TestT33OtherProcess: another process is read while it runs and while it is
// stopped; after its end the message says so.
func TestT33OtherProcess(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run", "^TestChild$")
	c.Env = append(os.Environ(), "STATPAGE_CHILD=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() (n int64) {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			pages, err := statpage.Read(c.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			if len(pages) == 0 {
				continue // it has not come that far
			}
			if _, err := fmt.Sscan(string(pages[0].Body), &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		t.Fatal("it never published")
		return 0
	}
	first := read()
	for end := time.Now().Add(time.Minute); read() == first; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the count stands still")
		}
	}
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	read() // a stopped process answers
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := statpage.Read(c.Process.Pid); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}

// TestChild is the process that TestT33OtherProcess starts.
func TestChild(t *testing.T) {
	if os.Getenv("STATPAGE_CHILD") == "" {
		return
	}
	var n atomic.Int64
	p, err := statpage.Publish(func() any { return n.Add(1) }, statpage.MinEvery)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent closes it
}

func TestLimits(t *testing.T) {
	for _, every := range []time.Duration{0, statpage.MinEvery - 1, statpage.MaxEvery + 1} {
		if _, err := statpage.Publish(func() any { return 1 }, every); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%v: %v", every, err)
		}
	}
	big := func(n int) func() any { return func() any { return strings.Repeat("x", n) } }
	if _, err := statpage.Publish(big(statpage.MaxBody-1), time.Hour); !errors.Is(err, base.ErrInvalid) {
		t.Errorf("too large: %v", err)
	}
	p, err := statpage.Publish(big(statpage.MaxBody-2), time.Hour) // and two quotes
	if err != nil {
		t.Fatal(err)
	}
	if pages, err := statpage.Read(os.Getpid()); err != nil || len(pages) != 1 || len(pages[0].Body) != statpage.MaxBody {
		t.Errorf("%d pages, %v", len(pages), err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := statpage.Publish(func() any { return func() {} }, time.Second); err == nil {
		t.Error("a function is no document")
	}
	for _, pid := range []int{0, -1, 1 << 30} {
		if _, err := statpage.Read(pid); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("pid %d: %v", pid, err)
		}
	}
}
