package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// crashDisks are disks with volatile write caches that lose power at one moment, all
// together. QEMU reaches each over a socket (NBD, doc/proto.md of the NBD project). A
// write that was answered is safe once a flush that came later is answered, or at
// once with FUA; at a cut each of the others is kept, lost, or torn at sectors.
type crashDisks struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	disks []*crashDisk
	dead  bool // the power is off: nothing is answered
	armed int  // how many more writes there are until the power is cut; 0 is never
	open  int  // how many writes were open at the cut
	gone  chan struct{}
}

// crashDisk is one disk.
type crashDisk struct {
	all     *crashDisks
	path    string // of the socket
	view    []byte // what the owner reads
	durable []byte // what is left after a cut
	open    []diskWrite
	flushes int
	ln      net.Listener
	work    sync.WaitGroup
	conns   []net.Conn
}

type diskWrite struct {
	off  int
	data []byte
}

// tornAt is the grain of tearing, bytes.
const tornAt = 512

func newCrashDisks(seed uint64) *crashDisks {
	return &crashDisks{rnd: rand.New(rand.NewPCG(seed, 0))}
}

// add makes a disk with the given content.
func (c *crashDisks) add(path string, content []byte) *crashDisk {
	d := &crashDisk{all: c, path: path, view: content, durable: append([]byte{}, content...)}
	c.disks = append(c.disks, d)
	return d
}

// powerOn lets all disks be reached.
func (c *crashDisks) powerOn() error {
	c.dead, c.armed, c.gone = false, 0, make(chan struct{})
	for _, d := range c.disks {
		if err := os.Remove(d.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		var err error
		if d.ln, err = net.Listen("unix", d.path); err != nil {
			return err
		}
		d.work.Go(d.accept)
	}
	return nil
}

// arm has the power cut in the middle of the nth write from now on; the channel is
// closed when that has happened.
func (c *crashDisks) arm(n int) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = n
	return c.gone
}

// cut takes the power away: from this moment on nothing is answered. What was open has
// its fate drawn.
func (c *crashDisks) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cutNow()
}

// cutNow is cut; the caller holds mu.
func (c *crashDisks) cutNow() {
	if c.dead {
		return
	}
	c.dead, c.open = true, 0
	for _, d := range c.disks {
		c.open += len(d.open)
		for _, w := range d.open {
			c.fate(d, w)
		}
		d.open = nil
	}
	close(c.gone)
}

// fate draws what becomes of a write that no flush has covered.
func (c *crashDisks) fate(d *crashDisk, w diskWrite) {
	switch c.rnd.IntN(3) {
	case 0:
		copy(d.durable[w.off:], w.data)
	case 1:
		for at := 0; at < len(w.data); at += tornAt {
			if c.rnd.IntN(2) == 0 {
				copy(d.durable[w.off+at:], w.data[at:min(at+tornAt, len(w.data))])
			}
		}
	}
}

// powerOff closes the sockets, after QEMU has ended. What the disks hold then is what
// the cut has left.
func (c *crashDisks) powerOff() {
	for _, d := range c.disks {
		_ = d.ln.Close()
		c.mu.Lock()
		for _, n := range d.conns {
			_ = n.Close()
		}
		d.conns = nil
		c.mu.Unlock()
		d.work.Wait()
		if c.dead {
			copy(d.view, d.durable)
		}
	}
}

func (d *crashDisk) accept() {
	for {
		n, err := d.ln.Accept()
		if err != nil {
			return
		}
		d.all.mu.Lock()
		d.conns = append(d.conns, n)
		d.all.mu.Unlock()
		d.work.Go(func() {
			_ = d.serve(n) // QEMU has gone
			_ = n.Close()
		})
	}
}

// Numbers of the protocol.
const (
	nbdMagic       = 0x4e42444d41474943
	nbdOptMagic    = 0x49484156454f5054
	nbdReplyMagic  = 0x3e889045565a9
	nbdRequest     = 0x25609513
	nbdAnswer      = 0x67446698
	nbdOptAbort    = 2
	nbdOptInfo     = 6
	nbdOptGo       = 7
	nbdRepAck      = 1
	nbdRepInfo     = 3
	nbdRepUnknown  = 1<<31 + 1
	nbdFlags       = 1<<0 | 1<<2 | 1<<3 | 1<<5 | 1<<6 // flush, FUA, trim, write zeroes
	nbdRead        = 0
	nbdWrite       = 1
	nbdDisconnect  = 2
	nbdFlush       = 3
	nbdTrim        = 4
	nbdZeroes      = 6
	nbdFUA         = 1 << 0
	nbdInvalid     = 22
	nbdLargest     = 32 * mib // of a request
	nbdOptionBytes = 64 << 10
)

// serve speaks with one client.
func (d *crashDisk) serve(n net.Conn) error {
	if err := send(n, uint64(nbdMagic), uint64(nbdOptMagic), uint16(3)); err != nil { // fixed newstyle, no zeroes
		return err
	}
	var flags uint32
	if err := binary.Read(n, binary.BigEndian, &flags); err != nil {
		return err
	}
	if err := d.negotiate(n); err != nil {
		return err
	}
	for {
		var r struct {
			Magic       uint32
			Flags, Type uint16
			Handle, Off uint64
			Length      uint32
		}
		if err := binary.Read(n, binary.BigEndian, &r); err != nil {
			return err
		}
		if r.Magic != nbdRequest || r.Type == nbdDisconnect || r.Length > nbdLargest {
			return fmt.Errorf("request %+v", r)
		}
		var data []byte
		if r.Type == nbdWrite {
			data = make([]byte, r.Length)
			if _, err := io.ReadFull(n, data); err != nil {
				return err
			}
		}
		answer, code, alive := d.do(r.Type, r.Flags&nbdFUA != 0, r.Off, int(r.Length), data)
		if !alive {
			_, err := io.Copy(io.Discard, n) // until QEMU is killed
			return err
		}
		if err := send(n, uint32(nbdAnswer), code, r.Handle, answer); err != nil {
			return err
		}
	}
}

func send(w io.Writer, values ...any) error {
	var out []byte
	for _, v := range values {
		out, _ = binary.Append(out, binary.BigEndian, v) // numbers and bytes only
	}
	_, err := w.Write(out)
	return err
}

// negotiate ends when the client asks for the export.
func (d *crashDisk) negotiate(n net.Conn) error {
	for {
		var o struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(n, binary.BigEndian, &o); err != nil {
			return err
		}
		if o.Magic != nbdOptMagic || o.Length > nbdOptionBytes {
			return fmt.Errorf("option %+v", o)
		}
		if _, err := io.CopyN(io.Discard, n, int64(o.Length)); err != nil {
			return err
		}
		reply := func(kind uint32, data ...any) error {
			var body []byte
			for _, v := range data {
				body, _ = binary.Append(body, binary.BigEndian, v)
			}
			return send(n, uint64(nbdReplyMagic), o.Option, kind, uint32(len(body)), body)
		}
		switch o.Option {
		case nbdOptGo, nbdOptInfo:
			err := errors.Join(reply(nbdRepInfo, uint16(0), uint64(len(d.view)), uint16(nbdFlags)), reply(nbdRepAck))
			if err != nil || o.Option == nbdOptGo {
				return err
			}
		case nbdOptAbort:
			return errors.Join(reply(nbdRepAck), io.EOF)
		default:
			if err := reply(nbdRepUnknown); err != nil {
				return err
			}
		}
	}
}

// do executes a request; alive is false once the power is off.
func (d *crashDisk) do(kind uint16, fua bool, off uint64, n int, data []byte) (answer []byte, code uint32, alive bool) {
	d.all.mu.Lock()
	defer d.all.mu.Unlock()
	switch {
	case d.all.dead:
		return nil, 0, false
	case off > uint64(len(d.view)) || uint64(n) > uint64(len(d.view))-off:
		return nil, nbdInvalid, true
	}
	at := int(off)
	switch kind {
	case nbdRead:
		return append([]byte{}, d.view[at:at+n]...), 0, true
	case nbdWrite:
		return nil, 0, d.write(at, data, fua)
	case nbdTrim, nbdZeroes:
		return nil, 0, d.write(at, make([]byte, n), fua)
	case nbdFlush:
		for _, w := range d.open {
			copy(d.durable[w.off:], w.data)
		}
		d.open = nil
		d.flushes++
	default:
		return nil, nbdInvalid, true
	}
	return nil, 0, true
}

// write is answered unless the power is cut in its middle.
func (d *crashDisk) write(at int, data []byte, fua bool) (alive bool) {
	copy(d.view[at:], data)
	d.open = append(d.open, diskWrite{at, data})
	if d.all.armed > 0 {
		if d.all.armed--; d.all.armed == 0 {
			d.all.cutNow()
			return false
		}
	}
	if fua {
		copy(d.durable[at:], data)
		d.open = d.open[:len(d.open)-1]
	}
	return true
}
