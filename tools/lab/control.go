package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// control is the wire on which a test in the guest asks for something to happen to
// its machine: each line is a command of QEMU's machine protocol (QMP) in JSON, and
// is answered by one line, the answer. So a fault and what must come of it stand in
// one test.
type control struct {
	guestPath, qmpPath string
	mu                 sync.Mutex
	conns              []net.Conn
	closed             bool
	done               sync.WaitGroup
}

// Limits of the control line.
const (
	dialLimit   = 20 * time.Second
	answerLimit = 60 * time.Second
	lineLimit   = 1 << 20
)

func newControl(guest, qmp string) *control {
	c := &control{guestPath: guest, qmpPath: qmp}
	c.done.Go(func() { _ = c.serve() }) // a guest that gets no answer says so
	return c
}

func (c *control) close() {
	c.mu.Lock()
	c.closed = true
	for _, n := range c.conns {
		_ = n.Close()
	}
	c.mu.Unlock()
	c.done.Wait()
}

// dial waits for QEMU to make its socket.
func (c *control) dial(path string) (net.Conn, error) {
	for end := time.Now().Add(dialLimit); ; time.Sleep(pollEvery) {
		n, err := net.Dial("unix", path)
		c.mu.Lock()
		closed := c.closed
		if err == nil && !closed {
			c.conns = append(c.conns, n)
		}
		c.mu.Unlock()
		switch {
		case closed && err == nil:
			_ = n.Close()
			return nil, net.ErrClosed
		case closed:
			return nil, net.ErrClosed
		case err == nil:
			return n, nil
		case time.Now().After(end):
			return nil, err
		}
	}
}

// monitor is a connection to QEMU.
type monitor struct {
	conn net.Conn
	in   *bufio.Scanner
}

func (c *control) monitor() (*monitor, error) {
	conn, err := c.dial(c.qmpPath)
	if err != nil {
		return nil, err
	}
	m := &monitor{conn, scanner(conn)}
	if _, err := m.read(func(map[string]json.RawMessage) bool { return true }); err != nil { // the greeting
		return nil, err
	}
	_, err = m.ask([]byte(`{"execute":"qmp_capabilities"}`))
	return m, err
}

func scanner(conn net.Conn) *bufio.Scanner {
	s := bufio.NewScanner(conn)
	s.Buffer(nil, lineLimit)
	return s
}

// ask sends a command and gives the line that answers it.
func (m *monitor) ask(command []byte) ([]byte, error) {
	if _, err := m.conn.Write(append(command, '\n')); err != nil {
		return nil, err
	}
	return m.read(func(f map[string]json.RawMessage) bool { return f["return"] != nil || f["error"] != nil })
}

// read gives the first line that is wanted; the others are events.
func (m *monitor) read(wanted func(map[string]json.RawMessage) bool) ([]byte, error) {
	_ = m.conn.SetReadDeadline(time.Now().Add(answerLimit))
	for m.in.Scan() {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(m.in.Bytes(), &fields); err != nil {
			return nil, fmt.Errorf("%q: %w", m.in.Bytes(), err)
		}
		if wanted(fields) {
			return append([]byte{}, m.in.Bytes()...), nil
		}
	}
	return nil, errors.Join(m.in.Err(), errors.New("no answer of QEMU"))
}

// serve answers the guest until the machine ends.
func (c *control) serve() error {
	guest, err := c.dial(c.guestPath)
	if err != nil {
		return err
	}
	m, err := c.monitor()
	if err != nil {
		return err
	}
	for in := scanner(guest); in.Scan(); {
		answer, err := m.ask(in.Bytes())
		if err != nil {
			answer, _ = json.Marshal(map[string]any{"error": map[string]string{"desc": err.Error()}})
		}
		if _, err := guest.Write(append(answer, '\n')); err != nil {
			return err
		}
	}
	return nil
}
