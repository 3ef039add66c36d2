package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
)

// What a child process is told.
const (
	childRole = "UGDS_STORE_CHILD"
	childDir  = "UGDS_STORE_DIR"
)

// child plays a part that needs a process of its own; it returns when this
// process is the test binary itself.
func child() {
	role := os.Getenv(childRole)
	if role == "" {
		return
	}
	var err error
	switch role {
	case "plain":
	case "nofile":
		err = unix.SetRlimit(unix.RlimitNofile, unix.Rlimit{Soft: 64, Hard: 64})
	case "memlock":
		err = unix.SetRlimit(unix.RlimitMemlock, unix.Rlimit{Soft: 64 << 10, Hard: 64 << 10})
	case "seccomp":
		err = unix.Refuse(unix.UringCalls, unix.EPERM)
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err == nil {
		err = childStore(os.Getenv(childDir))
	}
	if err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childStore makes a store, fills it so that the metadata has several tables,
// reopens it and compares.
func childStore(dir string) error {
	path, mo := filepath.Join(dir, "data"), meta.Options{Dir: filepath.Join(dir, "meta")}
	if err := file.Create(path, 256<<20, true); err != nil {
		return err
	}
	for round := range 3 {
		d, err := file.Open(bg, file.Options{Path: path})
		if err != nil {
			return err
		}
		if round == 0 {
			fmt.Println("engine", d.Info().Engine)
			fmt.Println(strings.Join(d.Info().Reasons, "\n"))
			if _, err := store.Format(bg, store.FormatOptions{Devices: devices(d), Meta: mo}); err != nil {
				return err
			}
		}
		s, err := store.Open(bg, store.Options{Devices: devices(d), Meta: mo})
		if err != nil {
			return err
		}
		ns, err := s.Namespace(bg, "n", store.NamespaceOptions{Create: true})
		if err != nil {
			return err
		}
		if err := childRound(ns, round); err != nil {
			return err
		}
		if err := errors.Join(s.Close(bg), d.Close(bg)); err != nil {
			return err
		}
	}
	return nil
}

// childBatches is how many batches of 400 objects a round puts. Children are
// instrumented, too, under the race detector.
func childBatches() int {
	if testenv.Race {
		return 3
	}
	return 12
}

func childRound(ns *store.Namespace, round int) error {
	for i := range childBatches() {
		items := make([]store.PutItem, 400)
		for j := range items {
			key := append([]byte(fmt.Sprintf("%d-%d-%d-", round, i, j)), fill(uint64(i*1000+j), 900)...)
			items[j] = store.PutItem{Key: key, Value: store.Bytes(key[:12]), PutOptions: store.PutOptions{Durability: store.Relaxed}}
		}
		ns.PutBatch(bg, items)
		for j := range items {
			if items[j].Err != nil {
				return items[j].Err
			}
		}
	}
	n := 0
	for info, err := range ns.List(bg, store.ListOptions{}) {
		if err != nil {
			return err
		}
		got, err := ns.GetBytes(bg, info.Key, store.GetOptions{})
		if err != nil || !bytes.Equal(got, info.Key[:12]) {
			return fmt.Errorf("%.20q: %d bytes, %v", info.Key, len(got), err)
		}
		n++
	}
	if n != (round+1)*childBatches()*400 {
		return fmt.Errorf("%d objects after round %d", n, round)
	}
	return nil
}

// TestRestrictedProcesses runs a whole store where little is allowed (J-26 and
// A-13 among them).
func TestRestrictedProcesses(t *testing.T) {
	for _, c := range []struct {
		role string
		uid  uint32
		says string
	}{
		{"plain", 0, "engine io_uring"},
		{"nofile", 0, "engine io_uring"},
		{"memlock", 65534, "engine"},
		{"seccomp", 0, "engine pread/pwrite"},
	} {
		t.Run(c.role, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "ugds-store-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe)
			if c.uid != 0 {
				testenv.NeedRoot(t)
				cmd.Path = filepath.Join(dir, "test-binary")
				copyExecutable(t, exe, cmd.Path)
				if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, int(c.uid), int(c.uid))); err != nil {
					t.Fatal(err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.uid, Gid: c.uid}}
			}
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), childRole+"="+c.role, childDir+"="+dir)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.says) {
				t.Errorf("%v, want %q in:\n%s", err, c.says, out)
			}
			t.Logf("%s", out)
		})
	}
}

func copyExecutable(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}
