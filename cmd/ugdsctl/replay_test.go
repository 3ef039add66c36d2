package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/testenv"
)

// hourRequests is how many requests of the shared conversation trace are replayed at
// length; it has 54,559 references in them, 15,771 of which are hits.
const hourRequests = 2000

// replayed is what a replay in a process of its own counted.
type replayed struct{ Requests, References, Hits, Puts, Verified int64 }

// TestReplayAtLength replays a made trace of the shape of the shared one, as many
// requests of it: the counts are those of one by one, everything hits after a restart,
// and after a kill in the middle the sum is right. Every byte is compared.
func TestReplayAtLength(t *testing.T) {
	all := testenv.Trace(testenv.Seed(t), hourRequests+100)
	var text strings.Builder
	half := 0 // where the second half of the text begins
	for i, ids := range all {
		if i == hourRequests/2 {
			half = text.Len()
		}
		list, err := json.Marshal(ids)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, `{"timestamp": %d, "hash_ids": %s}`+"\n", i, list)
	}
	refs, hits, puts := testenv.CountTrace(all[:hourRequests], map[uint64]bool{})
	if refs < 40_000 || hits < refs/5 || puts < refs/5 {
		t.Fatalf("the trace has another shape: %d references, %d hits", refs, hits)
	}
	replay := func(dir string) (cmd *exec.Cmd) {
		return program(t, "replay", "--store", dir, "--trace", "-", "--block-bytes", "4KiB", "--limit", fmt.Sprint(hourRequests), "--verify", "--json")
	}
	whole := func(dir string) (d replayed) {
		t.Helper()
		cmd := replay(dir)
		cmd.Stdin = strings.NewReader(text.String())
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &d)
		}
		if err != nil || d.Requests != hourRequests || d.References != refs || d.Hits+d.Puts != refs || d.Verified != d.Hits {
			t.Fatalf("%v: %+v of %d references\n%s", err, d, refs, &errs)
		}
		return d
	}
	dir := newReplayStore(t)
	if d := whole(dir); d.Hits != hits || d.Puts != puts {
		t.Errorf("%+v, want %d hits", d, hits)
	}
	if d := whole(dir); d.Hits != refs {
		t.Errorf("after a restart: %+v", d)
	}
	dir = newReplayStore(t)
	cmd := replay(dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, text.String()[:half]); err != nil { // a pipe holds a few dozen requests
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(cmd.Wait()); code != -1 {
		t.Fatalf("exit %d before it was killed", code)
	}
	if d := whole(dir); d.Hits == refs || d.Hits < hits {
		t.Errorf("after a kill: %+v, %d hits on an empty store", d, hits)
	}
	if out, errs, code := call(t, "", "fsck", "--store", dir); code != 0 {
		t.Errorf("fsck: exit %d, %q %s", code, out, errs)
	}
}

// newReplayStore is a store that holds the blocks of a replay at length.
func newReplayStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "s")
	if _, errs, code := call(t, "", "format", "--store", dir, "--size", "512MiB", "--sparse", "--yes"); code != 0 {
		t.Fatal(errs)
	}
	return dir
}
