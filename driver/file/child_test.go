package file_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// childRole names the part that a child process plays; childPath is its file.
const (
	childRole = "UGDS_TEST_CHILD"
	childPath = "UGDS_TEST_PATH"
)

// child runs the part of a test that needs a process of its own; it returns
// when this process is the test binary itself.
func child() {
	role := os.Getenv(childRole)
	if role == "" {
		return
	}
	var err error
	switch role {
	case "memlock":
		err = errors.Join(unix.SetRlimit(unix.RlimitMemlock, unix.Rlimit{Soft: 64 << 10, Hard: 64 << 10}), childIO())
	case "seccomp":
		err = errors.Join(unix.Refuse(unix.UringCalls, unix.EPERM), childIO())
	case "enosys":
		err = errors.Join(unix.Refuse(unix.UringCalls, unix.ENOSYS), childIO())
	case "nofile":
		err = errors.Join(unix.SetRlimit(unix.RlimitNofile, unix.Rlimit{Soft: 64, Hard: 64}), childIO())
	case "holder":
		err = childHolder()
	case "writer":
		err = childWriter()
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Println("child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childIO writes and reads a little and prints how.
func childIO() error {
	ctx := context.Background()
	d, err := file.Open(ctx, file.Options{Path: os.Getenv(childPath)})
	if err != nil {
		return err
	}
	r, err := driver.AllocRegion(4*base.MiB, "child")
	if err != nil {
		return err
	}
	err = errors.Join(d.Attach(r), driver.Do(ctx, d, rw(driver.OpWrite, 0, r.Seg(0, 4*base.MiB))),
		driver.Do(ctx, d, rw(driver.OpRead, 0, r.Seg(0, 4*base.MiB))), driver.Flush(ctx, d))
	fmt.Println(d.Info().Engine)
	fmt.Println(strings.Join(d.Info().Reasons, "\n"))
	return errors.Join(err, r.Close(), d.Close(ctx))
}

// childHolder opens the device, says so, and waits to be killed.
func childHolder() error {
	if _, err := file.Open(context.Background(), file.Options{Path: os.Getenv(childPath), Owner: "holder"}); err != nil {
		return err
	}
	fmt.Println("open")
	select {}
}

// self is a command that runs this binary in a role. With uid not 0 the binary
// is copied to where that user can reach it.
func self(t *testing.T, role, path string, uid uint32) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if uid != 0 {
		testenv.NeedRoot(t)
		exe = copyTo(t, exe, filepath.Join(filepath.Dir(path), "test-binary"))
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childRole+"="+role, childPath+"="+path)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = filepath.Dir(path)
		if err := errors.Join(os.Chown(filepath.Dir(path), int(uid), int(uid)), os.Chown(path, int(uid), int(uid))); err != nil {
			t.Fatal(err)
		}
	}
	return cmd
}

func copyTo(t *testing.T, from, to string) string {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	return to
}

// open755 is a directory that other users reach.
func open755(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ugds-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRestrictedEnvironments(t *testing.T) {
	for _, c := range []struct {
		role   string
		uid    uint32
		engine string
		says   string
	}{
		{"memlock", 65534, file.EngineURing, "ulimit -l"},
		{"seccomp", 0, file.EnginePool, "seccomp"},
		{"enosys", 0, file.EnginePool, "no io_uring"},
		{"nofile", 0, file.EngineURing, "io_uring"}, // J-26
	} {
		t.Run(c.role, func(t *testing.T) {
			cmd := self(t, c.role, create(t, open755(t), 8*base.MiB), c.uid)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			engine, rest, _ := strings.Cut(string(out), "\n")
			if engine != c.engine || !strings.Contains(rest, c.says) {
				t.Errorf("engine %q, want %q with %q in\n%s", engine, c.engine, c.says, rest)
			}
		})
	}
}
