package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ugds-store/ugds/internal/unix"
)

// The owner's record is text beside the lock, never the lock: an extended
// attribute of the data file, so that it moves and vanishes with it; a file
// PATH.owner where the file system has no attributes; a file under /run for
// block devices, whose nodes take none.
const (
	recordAttr = "user.ugds.owner"
	recordDir  = "/run/ugds"
)

// record is the text about one owner.
type record struct {
	unix.Proc
	name string // command and the caller's own text
	file string // side file, "" when the attribute is used
}

// String names the owner for messages.
func (r *record) String() string {
	if r.name == "" {
		return fmt.Sprintf("pid %d", r.PID)
	}
	return fmt.Sprintf("pid %d (%s)", r.PID, r.name)
}

func (r *record) encode() string {
	return fmt.Sprintf("%d %d %s %s", r.PID, r.Start, orDash(r.Boot), r.name)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func decodeRecord(s string) (record, bool) {
	var r record
	n, _ := fmt.Sscanf(s, "%d %d %s", &r.PID, &r.Start, &r.Boot)
	if n < 3 || r.PID <= 0 {
		return record{}, false
	}
	if f := strings.SplitN(s, " ", 4); len(f) == 4 {
		r.name = strings.Map(func(c rune) rune {
			if c < ' ' || c == 0x7f {
				return -1
			}
			return c
		}, f[3])
	}
	if r.Boot == "-" {
		r.Boot = ""
	}
	return r, true
}

// sideFile is where the record goes when it cannot be an attribute.
func sideFile(path string, st unix.Stat) string {
	if st.Kind == unix.KindBlock {
		return filepath.Join(recordDir, fmt.Sprintf("block-%d-%d.owner", st.Rdev.Major, st.Rdev.Minor))
	}
	return path + ".owner"
}

// writeRecord leaves this process's record. It fails without harm: the lock
// holds without it, only messages are poorer then.
func writeRecord(fd *unix.FD, st unix.Stat, owner string) (*record, error) {
	r := &record{Proc: unix.Self(), name: unix.ProcName(os.Getpid())}
	if owner != "" {
		r.name += ": " + owner
	}
	if len(r.name) > 200 {
		r.name = r.name[:200]
	}
	if st.Kind == unix.KindRegular && unix.SetXattr(fd, recordAttr, r.encode()) == nil {
		return r, nil
	}
	r.file = sideFile(fd.Path(), st)
	if st.Kind == unix.KindBlock {
		_ = os.Mkdir(recordDir, 0o755)
	}
	// A new file each time: O_EXCL does not follow what somebody put there.
	_ = os.Remove(r.file)
	f, err := unix.Open(r.file, unix.ReadWrite|unix.CreateNew, 0o644)
	if err != nil {
		return nil, err
	}
	_, err = unix.Pwrite(f, []byte(r.encode()), 0)
	_ = f.Close()
	return r, err
}

// clear removes the record; the lock is still held.
func (r *record) clear(fd *unix.FD) {
	if r == nil {
		return
	}
	if r.file != "" {
		_ = os.Remove(r.file)
		return
	}
	_ = unix.RemoveXattr(fd, recordAttr)
}

// readRecord reads what the last owner left.
func readRecord(path string, st unix.Stat) (*record, bool) {
	var text string
	if st.Kind == unix.KindRegular {
		if fd, err := unix.Open(path, unix.ReadOnly, 0); err == nil {
			text, _ = unix.GetXattr(fd, recordAttr)
			_ = fd.Close()
		}
	}
	if text == "" {
		b, _ := unix.ReadRegular(sideFile(path, st), 1024)
		text = string(b)
	}
	r, ok := decodeRecord(text)
	return &r, ok
}
