package ctl

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
)

// TestReplayOnModels is TestReplay on pools of one, two and three controller models
// of different shapes, with a second replay after everything was closed.
func TestReplayOnModels(t *testing.T) {
	shapes := []string{"lba=512,mdts=1,mqes=3,queues=1", "mdts=5,sgl=1", "lba=512,mdts=0,noiob=24,vwc=0,nsid=5"}
	for n := 1; n <= len(shapes); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			l := &lab{out: new(bytes.Buffer), err: new(bytes.Buffer), target: &Target{Dir: filepath.Join(dir, "s")}}
			l.Env = &Env{Stdin: strings.NewReader(""), Stdout: l.out, Stderr: l.err}
			for i, shape := range shapes[:n] {
				l.target.Devices = append(l.target.Devices, fmt.Sprintf("sim:%s,path=%s/model%d", shape, dir, i))
			}
			if err := Format(t.Context(), l.Env, l.target, FormatOptions{Size: 64 * base.MiB, Sparse: true, Yes: true}); err != nil {
				t.Fatal(err)
			}
			l.target.Devices = nil // store.toml names them
			text, all := madeTrace(testenv.Seed(t), 200)
			there := map[uint64]bool{}
			for range 2 {
				refs, hits, puts := testenv.CountTrace(all, there)
				d, err := l.replay(t, t.Context(), text, ReplayOptions{BlockBytes: 4096, Verify: true})
				if err != nil || d.References != refs || d.Hits != hits || d.Puts != puts || d.Verified != hits {
					t.Fatalf("%+v, %v; want %d references, %d hits, %d puts", d, err, refs, hits, puts)
				}
			}
			l.out.Reset()
			if err := Fsck(t.Context(), l.Env, l.target, FsckOptions{VerifyData: true}); err != nil {
				t.Errorf("fsck: %v, %s", err, l.out)
			}
		})
	}
}
