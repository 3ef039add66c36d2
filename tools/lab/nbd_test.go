package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// nbdClient is the smallest client.
type nbdClient struct {
	t *testing.T
	n net.Conn
	h uint64
}

func connect(t *testing.T, d *crashDisk) *nbdClient {
	t.Helper()
	n, err := net.Dial("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	c := &nbdClient{t: t, n: n}
	c.skip(18)
	c.check(send(n, uint32(3), uint64(nbdOptMagic), uint32(8), uint32(0))) // an option that it does not know
	if head := c.skip(20); binary.BigEndian.Uint32(head[12:]) != nbdRepUnknown {
		t.Fatalf("answer %x", head)
	}
	c.check(send(n, uint64(nbdOptMagic), uint32(nbdOptGo), uint32(6), uint32(0), uint16(0)))
	info := c.skip(20 + 12)
	if got := binary.BigEndian.Uint64(info[22:]); got != uint64(len(d.view)) {
		t.Fatalf("size %d", got)
	}
	c.skip(20)
	return c
}

func (c *nbdClient) check(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *nbdClient) skip(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(c.n, b)
	c.check(err)
	return b
}

func (c *nbdClient) do(kind, flags uint16, off uint64, length int, data []byte) (code uint32, answer []byte) {
	c.t.Helper()
	c.h++
	c.check(send(c.n, uint32(nbdRequest), flags, kind, c.h, off, uint32(length), data))
	head := c.skip(16)
	if binary.BigEndian.Uint64(head[8:]) != c.h {
		c.t.Fatalf("answer %x", head)
	}
	if code = binary.BigEndian.Uint32(head[4:]); code == 0 && kind == nbdRead {
		answer = c.skip(length)
	}
	return code, answer
}

// TestCrashDisk: what was flushed or written with FUA is there after a cut; of the rest
// each sector is old or new, and over many cuts both happen.
func TestCrashDisk(t *testing.T) {
	kept, lost, torn := 0, 0, 0
	for seed := range uint64(40) {
		all := newCrashDisks(seed)
		d := all.add(filepath.Join(t.TempDir(), "s"), make([]byte, 1<<20))
		if err := all.powerOn(); err != nil {
			t.Fatal(err)
		}
		c := connect(t, d)
		page := func(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }
		c.do(nbdWrite, 0, 0, 4096, page(1))
		c.do(nbdFlush, 0, 0, 0, nil)
		c.do(nbdWrite, nbdFUA, 4096, 4096, page(2))
		c.do(nbdWrite, 0, 0, 4096, page(3))
		c.do(nbdWrite, 0, 8192, 4096, page(4))
		if _, got := c.do(nbdRead, 0, 0, 4096, nil); !bytes.Equal(got, page(3)) {
			t.Fatal("a read does not see what was written")
		}
		if code, _ := c.do(nbdRead, 0, 1<<20-4096, 8192, nil); code != nbdInvalid {
			t.Errorf("past the end: %d", code)
		}
		if all.cut(); all.open != 2 {
			t.Errorf("%d writes were open", all.open)
		}
		c.n.Close()
		all.powerOff()
		if !bytes.Equal(d.view[4096:8192], page(2)) {
			t.Error("a FUA write is lost")
		}
		news := bytes.Count(d.view[:4096], []byte{3})
		if news+bytes.Count(d.view[:4096], []byte{1}) != 4096 || news%tornAt != 0 {
			t.Fatalf("%d new bytes in a page", news)
		}
		switch news {
		case 0:
			lost++
		case 4096:
			kept++
		default:
			torn++
		}
	}
	if kept == 0 || lost == 0 || torn == 0 {
		t.Errorf("%d kept, %d lost, %d torn", kept, lost, torn)
	}
}

// TestCrashDiskArmed: the power is cut in the middle of a write, which is not answered.
func TestCrashDiskArmed(t *testing.T) {
	all := newCrashDisks(1)
	d := all.add(filepath.Join(t.TempDir(), "s"), make([]byte, 1<<20))
	if err := all.powerOn(); err != nil {
		t.Fatal(err)
	}
	c := connect(t, d)
	gone := all.arm(2)
	c.do(nbdWrite, 0, 0, 4096, make([]byte, 4096))
	select {
	case <-gone:
		t.Fatal("it is cut too early")
	default:
	}
	c.check(send(c.n, uint32(nbdRequest), uint16(0), uint16(nbdWrite), uint64(9), uint64(0), uint32(1), []byte{1}))
	<-gone
	if all.open != 2 {
		t.Errorf("%d writes were open", all.open)
	}
	c.n.Close()
	all.powerOff()
}
