package file_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/testenv"
	"github.com/ugds-store/ugds/internal/unix"
)

// ways are the two ways of a File. Both must give the same bytes.
var ways = map[string]file.FileOptions{
	"direct":   {Access: file.ForBoth},
	"buffered": {Access: file.ForBoth, Buffered: true},
}

func openAny(t *testing.T, path string, o file.FileOptions) *file.File {
	t.Helper()
	f, err := file.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, base.ErrClosed) {
			t.Error(err)
		}
	})
	return f
}

func randomBytes(t *testing.T, n int) []byte {
	rng := testenv.Seed(t)
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func dataFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// aligned gives n bytes whose address has the remainder rem by 4096.
func aligned(n, rem int) []byte {
	b := make([]byte, n+2*4096)
	at := (4096 - int(unix.Addr(b)%4096) + rem) % 4096
	return b[at : at+n : at+n]
}

// TestT31AnyFile: ranges that begin and end anywhere, in memory that begins
// anywhere, move exactly; the bytes beside them in the file and in memory stay.
func TestT31AnyFile(t *testing.T) {
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			rng := testenv.Seed(t)
			model := randomBytes(t, 300_001)
			f := openAny(t, dataFile(t, model), o)
			var odd int64
			for i := range 400 {
				off := rng.IntN(len(model))
				n := rng.IntN(min(len(model)-off, 1<<rng.IntN(19)) + 1)
				if i%5 == 0 { // block borders, and one beside
					off = off &^ 4095
					n = min(n&^4095+[]int{0, 1, 511, 4095}[rng.IntN(4)], len(model)-off)
				}
				mem := aligned(n+128, rng.IntN(2)*rng.IntN(4096))
				guard := bytes.Repeat([]byte{0xa5}, 64)
				copy(mem, guard)
				copy(mem[64+n:], guard)
				p := mem[64 : 64+n]
				before := f.Stats().Unaligned
				if i%2 == 0 {
					if k, err := f.ReadAt(p, int64(off)); k != n || err != nil {
						t.Fatalf("read %d at %d: %d, %v", n, off, k, err)
					}
					if !bytes.Equal(p, model[off:off+n]) {
						t.Fatalf("read %d at %d: other bytes", n, off)
					}
				} else {
					for k := range p {
						p[k] = byte(rng.Uint32())
					}
					if k, err := f.WriteAt(p, int64(off)); k != n || err != nil {
						t.Fatalf("write %d at %d: %d, %v", n, off, k, err)
					}
					copy(model[off:], p)
				}
				if !bytes.Equal(mem[:64], guard) || !bytes.Equal(mem[64+n:], guard) {
					t.Fatalf("%d bytes at %d: memory beside them changed", n, off)
				}
				if off%int(f.Align()) != 0 && n > 0 && f.Direct() && f.Stats().Unaligned != before+1 {
					t.Errorf("%d bytes at %d are not counted as unaligned", n, off)
				}
				odd++
			}
			if back, err := os.ReadFile(f.Path()); err != nil || !bytes.Equal(back, model) {
				t.Fatalf("the file differs from the model: %v", err)
			}
			st := f.Stats()
			if st.Reads+st.Writes != odd || st.Errors != 0 {
				t.Errorf("%d operations, %+v", odd, st)
			}
			if o.Buffered && (f.Direct() || st.ReadDirect+st.WroteDirect != 0) {
				t.Errorf("buffered: %+v", st)
			}
		})
	}
}

// TestAnyFileUsesDirect: what is aligned goes by O_DIRECT and nothing else does.
func TestAnyFileUsesDirect(t *testing.T) {
	f := openAny(t, dataFile(t, randomBytes(t, 64<<10)), file.FileOptions{Access: file.ForBoth})
	if !f.Direct() {
		testenv.Skip(t, "no O_DIRECT here: "+f.Reasons()[0])
	}
	if _, err := f.ReadAt(aligned(32<<10, 0), 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(aligned(8<<10, 0), 8192); err != nil {
		t.Fatal(err)
	}
	if st := f.Stats(); st.ReadDirect != 32<<10 || st.WroteDirect != 8<<10 || st.ReadPlain+st.WrotePlain+st.Unaligned != 0 {
		t.Errorf("%+v", st)
	}
	// Memory and offset with the same remainder: only the ends are odd.
	if _, err := f.ReadAt(aligned(16<<10, 5), 4096+5); err != nil {
		t.Fatal(err)
	}
	if st := f.Stats(); st.ReadDirect < 32<<10+12<<10 || st.ReadPlain == 0 || st.Unaligned != 1 {
		t.Errorf("%+v", st)
	}
}

// TestAnyFileEnd: the end of the file is io.EOF with what came before it, and a
// write beyond it makes the file longer with zeros between.
func TestAnyFileEnd(t *testing.T) {
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			data := randomBytes(t, 10_001)
			f := openAny(t, dataFile(t, data), o)
			p := aligned(16<<10, 0)
			if n, err := f.ReadAt(p, 0); n != 10_001 || err != io.EOF || !bytes.Equal(p[:n], data) {
				t.Fatalf("%d, %v", n, err)
			}
			if n, err := f.ReadAt(p, 10_001); n != 0 || err != io.EOF {
				t.Fatalf("at the end: %d, %v", n, err)
			}
			if n, err := f.ReadAt(nil, 1<<40); n != 0 || err != nil {
				t.Fatalf("nothing: %d, %v", n, err)
			}
			w := aligned(5000, 1)
			copy(w, randomBytes(t, 5000))
			if n, err := f.WriteAt(w, 50_003); n != 5000 || err != nil {
				t.Fatal(n, err)
			}
			if size, err := f.Size(); size != 55_003 || err != nil {
				t.Fatalf("size %d, %v", size, err)
			}
			want := append(append(bytes.Clone(data), make([]byte, 50_003-10_001)...), w...)
			if back, err := os.ReadFile(f.Path()); err != nil || !bytes.Equal(back, want) {
				t.Fatalf("the file is not what was written: %v", err)
			}
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestAnyFileFarOffsets: holes read as zeros, and offsets have 64 bits.
func TestAnyFileFarOffsets(t *testing.T) {
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			path := dataFile(t, nil)
			const size = 6<<30 + 777
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			f := openAny(t, path, o)
			w := randomBytes(t, 9000)
			for _, off := range []int64{2<<30 - 4500, 4<<30 - 1, 5<<30 + 4096} {
				if n, err := f.WriteAt(w, off); n != len(w) || err != nil {
					t.Fatal(off, n, err)
				}
				p := aligned(9000+200, 3)
				if n, err := f.ReadAt(p, off-100); n != len(p) || err != nil {
					t.Fatal(off, n, err)
				}
				want := append(append(make([]byte, 100), w...), make([]byte, 100)...)
				if !bytes.Equal(p, want) {
					t.Fatalf("offset %d: other bytes, or the hole is not zero", off)
				}
			}
			p := aligned(8192, 0)
			if n, err := f.ReadAt(p, 6<<30); n != 777 || err != io.EOF || !bytes.Equal(p[:n], make([]byte, 777)) {
				t.Fatal(n, err)
			}
		})
	}
}

// TestAnyFileShortCalls: calls that move less than asked, are interrupted or move
// nothing for a while make no difference to the caller.
func TestAnyFileShortCalls(t *testing.T) {
	data := randomBytes(t, 100_000)
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			rng := testenv.Seed(t)
			f := openAny(t, dataFile(t, data), o)
			var calls int
			f.SetHook(func(_ driver.Op, _, n int64, direct bool) (int64, error) {
				if calls++; calls%3 == 0 {
					return 0, unix.EAGAIN
				}
				if got := rng.Int64N(n) + 1; !direct {
					return got, nil
				} else if got &^= 4095; got > 0 { // the kernel gives whole blocks
					return got, nil
				}
				return n, nil
			})
			p := aligned(len(data), 0)
			if n, err := f.ReadAt(p, 0); n != len(p) || err != nil || !bytes.Equal(p, data) {
				t.Fatal(n, err)
			}
			if n, err := f.WriteAt(p[:90_000], 10_000); n != 90_000 || err != nil {
				t.Fatal(n, err)
			}
			f.SetHook(nil)
			if n, err := f.ReadAt(p, 0); n != len(p) || err != nil || !bytes.Equal(p[10_000:], data[:90_000]) {
				t.Fatal(n, err)
			}
			if calls < 10 {
				t.Errorf("only %d calls", calls)
			}
			f.SetHook(func(driver.Op, int64, int64, bool) (int64, error) { return 0, unix.EAGAIN })
			if n, err := f.ReadAt(p, 0); n != 0 || unix.ErrnoOf(err) != unix.EAGAIN {
				t.Errorf("without progress: %d, %v", n, err)
			}
		})
	}
}

// TestT26AnyFileError: an error comes with the bytes before it, and is counted.
func TestT26AnyFileError(t *testing.T) {
	f := openAny(t, dataFile(t, randomBytes(t, 40_000)), file.FileOptions{Access: file.ForBoth, Buffered: true})
	f.SetHook(func(_ driver.Op, off, n int64, _ bool) (int64, error) {
		if off >= 20_000 {
			return 0, unix.EIO
		}
		return min(n, 10_000), nil
	})
	p := make([]byte, 40_000)
	n, err := f.ReadAt(p, 5000)
	if n != 20_000 || unix.ErrnoOf(err) != unix.EIO {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err = f.WriteAt(p, 15_000); n != 10_000 || unix.ErrnoOf(err) != unix.EIO {
		t.Fatalf("%d, %v", n, err)
	}
	if st := f.Stats(); st.Errors != 2 || st.ReadPlain != 20_000 || st.WrotePlain != 10_000 || st.Reads+st.Writes != 0 {
		t.Errorf("%+v", st)
	}
	f.SetHook(func(driver.Op, int64, int64, bool) (int64, error) { return 0, unix.ENOSPC })
	if _, err := f.WriteAt(p, 0); !errors.Is(err, base.ErrNoSpace) {
		t.Error(err)
	}
}

// TestAnyFileOddDirect: a file system that refuses what it said it would take is
// used through the page cache.
func TestAnyFileOddDirect(t *testing.T) {
	data := randomBytes(t, 32<<10)
	f := openAny(t, dataFile(t, data), file.FileOptions{})
	f.SetHook(func(_ driver.Op, _, n int64, direct bool) (int64, error) {
		if direct {
			return 0, unix.EINVAL
		}
		return n, nil
	})
	p := aligned(len(data), 0)
	if n, err := f.ReadAt(p, 0); n != len(p) || err != nil || !bytes.Equal(p, data) {
		t.Fatal(n, err)
	}
	if st := f.Stats(); st.ReadPlain != int64(len(p)) || f.Direct() && st.Unaligned != 1 {
		t.Errorf("%+v", st)
	}
}

// TestAnyFileTruncatedUnderRead: the file is cut while it is read.
func TestAnyFileTruncatedUnderRead(t *testing.T) {
	for name, o := range ways {
		t.Run(name, func(t *testing.T) {
			data := randomBytes(t, 64<<10)
			path := dataFile(t, data)
			f := openAny(t, path, o)
			f.SetHook(func(_ driver.Op, off, n int64, direct bool) (int64, error) {
				if off == 16<<10 {
					if err := os.Truncate(path, 20_000); err != nil {
						t.Error(err)
					}
				}
				return min(n, 16<<10), nil
			})
			p := aligned(len(data), 0)
			if n, err := f.ReadAt(p, 0); n != 20_000 || err != io.EOF || !bytes.Equal(p[:n], data[:n]) {
				t.Fatalf("%d, %v", n, err)
			}
			f.SetHook(nil)
			if n, err := f.ReadAt(p, 30_000); n != 0 || err != io.EOF {
				t.Fatalf("beyond the new end: %d, %v", n, err)
			}
		})
	}
}

// TestAnyFileBesideOthers: several opens, direct and buffered, write and read one
// file at the same time without a lock, and each sees what the others wrote.
func TestAnyFileBesideOthers(t *testing.T) {
	path := dataFile(t, make([]byte, 8*40_000))
	var files []*file.File
	for i := range 8 {
		files = append(files, openAny(t, path, file.FileOptions{Access: file.ForBoth, Buffered: i%2 == 1}))
	}
	var wg sync.WaitGroup
	for i, f := range files {
		wg.Go(func() {
			part := aligned(40_000, i)
			for round := range 20 {
				for k := range part {
					part[k] = byte(i*31 + round + k)
				}
				if n, err := f.WriteAt(part, int64(i)*40_000); n != len(part) || err != nil {
					t.Error(n, err)
				}
				back := aligned(len(part), 0)
				if n, err := files[(i+1)%8].ReadAt(back, int64(i)*40_000); n != len(back) || err != nil || !bytes.Equal(back, part) {
					t.Errorf("round %d of %d: the other file sees other bytes: %d, %v", round, i, n, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestAnyFileRefusals: what is no file with offsets, and what the options forbid.
func TestAnyFileRefusals(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	there := dataFile(t, []byte("data"))
	for _, c := range []struct {
		path string
		o    file.FileOptions
		want error
	}{
		{pipe, file.FileOptions{}, base.ErrInvalid},
		{pipe, file.FileOptions{Access: file.ForWriting}, base.ErrInvalid},
		{pipe, file.FileOptions{Access: file.ForBoth}, base.ErrInvalid},
		{dir, file.FileOptions{}, base.ErrInvalid},
		{dir, file.FileOptions{Access: file.ForBoth}, base.ErrInvalid},
		{"/dev/null", file.FileOptions{}, base.ErrInvalid},
		{filepath.Join(dir, "none"), file.FileOptions{}, base.ErrNotFound},
		{there, file.FileOptions{Truncate: true}, base.ErrInvalid},
		{there, file.FileOptions{Buffered: true, NeedDirect: true}, base.ErrInvalid},
		{"/proc/self/stat", file.FileOptions{NeedDirect: true}, base.ErrNotSupported},
	} {
		done := make(chan error, 1)
		go func() {
			f, err := file.OpenFile(c.path, c.o)
			if err == nil {
				err = errors.Join(errors.New("opened"), f.Close())
			}
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, c.want) {
				t.Errorf("%s %+v: %v, want %v", c.path, c.o, err, c.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s %+v hangs", c.path, c.o)
		}
	}
	read := openAny(t, there, file.FileOptions{})
	if _, err := read.WriteAt([]byte("x"), 0); !errors.Is(err, base.ErrReadOnly) {
		t.Error(err)
	}
	write := openAny(t, there, file.FileOptions{Access: file.ForWriting})
	if _, err := write.ReadAt(make([]byte, 1), 0); !errors.Is(err, base.ErrInvalid) {
		t.Error(err)
	}
	for _, off := range []int64{-1, 1<<63 - 2} {
		if _, err := read.ReadAt(make([]byte, 4), off); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
}

// TestT39AnyFileAfterClose: use after close is an error and no crash.
func TestT39AnyFileAfterClose(t *testing.T) {
	f := openAny(t, dataFile(t, []byte("data")), file.FileOptions{Access: file.ForBoth})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, rerr := f.ReadAt(make([]byte, 4), 0)
	_, werr := f.WriteAt(make([]byte, 4), 0)
	_, serr := f.Size()
	for _, err := range []error{rerr, werr, serr, f.Sync(), f.Close()} {
		if !errors.Is(err, base.ErrClosed) {
			t.Errorf("after close: %v", err)
		}
	}
}

// TestAnyFileCreate makes, and empties, files.
func TestAnyFileCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new")
	f := openAny(t, path, file.FileOptions{Access: file.ForWriting, Create: true})
	if _, err := f.WriteAt([]byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	again := openAny(t, path, file.FileOptions{Access: file.ForBoth, Create: true})
	if size, err := again.Size(); size != 7 || err != nil {
		t.Fatal(size, err)
	}
	empty := openAny(t, path, file.FileOptions{Access: file.ForBoth, Truncate: true})
	if size, err := empty.Size(); size != 0 || err != nil {
		t.Fatal(size, err)
	}
}

// TestT04FromDescriptor: descriptors of the caller, and those that cannot be used.
func TestT04FromDescriptor(t *testing.T) {
	data := randomBytes(t, 30_000)
	path := dataFile(t, data)
	for name, flags := range map[string]int{"read": os.O_RDONLY, "both": os.O_RDWR, "direct": os.O_RDWR | syscall.O_DIRECT} {
		t.Run(name, func(t *testing.T) {
			of, err := os.OpenFile(path, flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			f, err := file.FromFD(int(of.Fd()), file.FileOptions{})
			if err := errors.Join(err, of.Close()); err != nil { // ours goes on without it
				t.Fatal(err)
			}
			defer f.Close()
			p := aligned(len(data)-7, 9)
			if n, err := f.ReadAt(p, 7); n != len(p) || err != nil || !bytes.Equal(p, data[7:]) {
				t.Fatal(n, err)
			}
			_, err = f.WriteAt(data[:5], 0)
			if flags == os.O_RDONLY != errors.Is(err, base.ErrReadOnly) {
				t.Fatal(err)
			}
		})
	}
	of, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for name, fd := range map[string]int{"append": int(of.Fd()), "pipe": int(r.Fd()), "closed": 9999} {
		if _, err := file.FromFD(fd, file.FileOptions{}); !errors.Is(err, base.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
