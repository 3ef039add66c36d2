package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// filesSubject keeps each object in a file of its own, as the file backends of
// cache engines do: written under a temporary name, renamed into place.
type filesSubject struct {
	d   *dataset
	dir string
}

func openFiles(d *dataset) (*filesSubject, error) {
	dir := filepath.Join(d.c.Place.Dir, filesName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, base.Wrap("bench", dir, err)
	}
	return &filesSubject{d, dir}, nil
}

func (s *filesSubject) path(i int) string {
	return filepath.Join(s.dir, strconv.FormatUint(s.d.c.Seed, 16)+"-"+strconv.Itoa(i))
}

func (s *filesSubject) settle(context.Context) error {
	f, err := unix.Open(s.dir, unix.ReadOnly|unix.Directory, 0)
	if err != nil {
		return base.Wrap("bench", s.dir, err)
	}
	return errors.Join(unix.SyncFS(f), f.Close())
}

func (s *filesSubject) close(context.Context) error { return nil }
func (s *filesSubject) count() counts               { return counts{engine: "pwrite, pread"} }
func (s *filesSubject) caller() caller              { return s }

func (s *filesSubject) do(_ context.Context, op string, ids []int) error {
	for _, i := range ids {
		var err error
		switch op {
		case OpPut:
			err = s.put(i)
		case OpGet:
			err = s.get(i)
		case OpDelete:
			err = os.Remove(s.path(i))
		case OpExists:
			_, err = unix.StatPath(s.path(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *filesSubject) put(i int) error {
	path := s.path(i)
	temp := path + ".tmp"
	f, err := unix.Open(temp, unix.ReadWrite|unix.CreateNew|unix.Direct, 0o600)
	if err != nil {
		return base.Wrap("create", temp, err)
	}
	err = whole(unix.Pwrite, f, s.d.slot(s.d.src, i), 0)
	if err == nil && s.d.c.Sync {
		err = unix.Fdatasync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

func (s *filesSubject) get(i int) error {
	f, err := unix.Open(s.path(i), unix.ReadOnly|unix.Direct, 0)
	if err != nil {
		return base.Wrap("open", s.path(i), err)
	}
	return errors.Join(whole(unix.Pread, f, s.d.slot(s.d.dst, i), 0), f.Close())
}
