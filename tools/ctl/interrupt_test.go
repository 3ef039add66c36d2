package ctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/internal/base"
)

// TestInterruptible: a write that nobody takes ends with the context, later ones
// at once, and one that somebody takes goes through after it.
func TestInterruptible(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	out := Interruptible(ctx, w)
	wrote := make(chan error)
	go func() {
		_, err := out.Write([]byte("stuck"))
		wrote <- err
	}()
	time.Sleep(5 * time.Millisecond)
	cancel()
	if err := <-wrote; ExitCode(err) != ExitInterrupted {
		t.Errorf("a write that nobody takes: %v", err)
	}
	if n, err := out.Write([]byte("x")); n != 0 || ExitCode(err) != ExitInterrupted {
		t.Errorf("the next: %d, %v", n, err)
	}
	r.Close() // ends the write that was left behind
	var late bytes.Buffer
	if n, err := Interruptible(ctx, &late).Write([]byte("late")); n != 4 || err != nil || late.String() != "late" {
		t.Errorf("what the verb says about its end: %d, %v, %q", n, err, &late)
	}
	broken := errors.New("broken")
	r2, w2 := io.Pipe()
	r2.CloseWithError(broken)
	if _, err := Interruptible(t.Context(), w2).Write([]byte("x")); err != broken {
		t.Errorf("an error of the writer: %v", err)
	}
}

// TestExistsManyKeys: standard input may hold more keys than one look-up takes,
// in any of the arguments' places, and only whole keys.
func TestExistsManyKeys(t *testing.T) {
	l := newLab(t)
	l.put(t, "k70000", []byte("x"))
	var in strings.Builder
	for i := range 2*existsKeys + 3 {
		fmt.Fprintf(&in, "k%d\n", i)
	}
	l.Stdin = strings.NewReader(strings.TrimSuffix(in.String(), "\n")) // the last line need not end
	l.out.Reset()
	err := Exists(t.Context(), l.Env, l.target, ExistsOptions{Keys: []string{"first", Std, "k70000", "last\r"}})
	got := strings.Split(strings.TrimSuffix(l.out.String(), "\n"), "\n")
	if ExitCode(err) != ExitNotFound || len(got) != 2*existsKeys+4 || got[0] != "first" || got[1] != "k0" || got[len(got)-1] != "hex:6c6173740d" {
		t.Errorf("%v, %d keys, %s … %s", err, len(got), got[0], got[len(got)-1])
	}
	if strings.Contains(l.out.String(), "k70000\n") {
		t.Error("a key that is there")
	}
	for _, line := range []string{"\n", strings.Repeat("k", 1025) + "\n", strings.Repeat("k", 70000), "a\n\nb\n"} {
		l.Stdin = strings.NewReader(line)
		if err := Exists(t.Context(), l.Env, l.target, ExistsOptions{Keys: []string{Std}}); ExitCode(err) != ExitUsage {
			t.Errorf("%.10q…: %v", line, err)
		}
	}
	l.Stdin = strings.NewReader("a\n\nb\n")
	if err := Exists(t.Context(), l.Env, l.target, ExistsOptions{Keys: []string{"c", Std}}); err == nil ||
		err.Error() != "exists: line 2 of standard input: a key of 0 bytes: 1 to 1024 are possible" {
		t.Errorf("an empty line: %v", err)
	}
	l.Stdin = strings.NewReader("a\n" + strings.Repeat("k", 70000))
	if err := Exists(t.Context(), l.Env, l.target, ExistsOptions{Keys: []string{Std}}); err == nil || !strings.Contains(err.Error(), "line 2 of") {
		t.Errorf("a long line: %v", err)
	}
	l.Stdin = strings.NewReader("\r\nb\r")
	l.out.Reset()
	if err := Exists(t.Context(), l.Env, l.target, ExistsOptions{Keys: []string{Std}}); ExitCode(err) != ExitNotFound || l.out.String() != "hex:0d\nhex:620d\n" {
		t.Errorf("%v, %q", err, l.out)
	}
}

// TestVerifyBatches: values of many batches, one wrong among them.
func TestVerifyBatches(t *testing.T) {
	l := newLab(t)
	big := bytes.Repeat([]byte("value of twenty MiB "), base.MiB)
	l.put(t, "big", big)
	l.put(t, "small", []byte("small value of no importance"))
	for i := range 3 {
		l.put(t, fmt.Sprintf("big%d", i), big[:8*base.MiB])
	}
	l.out.Reset()
	if err := Verify(t.Context(), l.Env, l.target, VerifyOptions{}); err != nil || l.out.String() != "5 objects of 44.0 MiB: every byte is right\n" {
		t.Errorf("%v, %q", err, l.out)
	}
	damage(t, l.target.Dir+"/"+dataName, []byte("small value of no"), 3)
	l.out.Reset()
	var moved, total int64
	l.Progress = func(_ string, n int64, _ bool) Bar { total = n; return barFunc(func(n int64) { moved += n }) }
	err := Verify(t.Context(), l.Env, l.target, VerifyOptions{All: true})
	if ExitCode(err) != ExitFailure || !strings.Contains(l.out.String(), "wrong: default small: ") || !strings.HasSuffix(l.out.String(), "\n5 objects of 44.0 MiB: 1 wrong\n") {
		t.Errorf("%v, %q", err, l.out)
	}
	if want := int64(44*base.MiB + 28); moved != want || total != want {
		t.Errorf("the bar moved %d of %d, want %d", moved, total, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l.Progress = func(string, int64, bool) Bar { cancel(); return noBar{} }
	l.out.Reset()
	if err := Verify(ctx, l.Env, l.target, VerifyOptions{}); ExitCode(err) != ExitInterrupted || l.out.String() != "0 objects of 0 B: right so far\n" {
		t.Errorf("interrupted: %v, %q", err, l.out)
	}
}

type barFunc func(n int64)

func (f barFunc) Add(n int64) { f(n) }
func (barFunc) Done()         {}
