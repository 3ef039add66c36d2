package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// tree is what an initial RAM disk holds: file contents by path, without the
// leading slash. The folders above a file come by themselves.
type tree map[string]treeFile

type treeFile struct {
	data []byte
	exec bool
}

// copyIn adds a file of this machine.
func (t tree) copyIn(name, from string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		t[name] = treeFile{data, true}
	}
	return err
}

// Modes of the entries of an archive.
const (
	modeFile = 0o100644
	modeExec = 0o100755
	modeDir  = 0o040755
)

// writeCPIO writes the tree as the kernel wants it: the "newc" format of
// Documentation/driver-api/early-userspace/buffer-format.rst, not compressed.
func (t tree) writeCPIO(out io.Writer) error {
	w := &cpioWriter{w: bufio.NewWriterSize(out, 1<<20)}
	names := []string{}
	dirs := map[string]bool{".": true}
	for name := range t {
		names = append(names, name)
		for d := path.Dir(name); !dirs[d]; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for _, empty := range []string{"proc", "sys", "dev", "tmp", "run"} {
		dirs[empty] = true
	}
	all := make([]string, 0, len(dirs))
	for d := range dirs {
		all = append(all, d)
	}
	slices.Sort(all) // a folder comes before what is in it
	slices.Sort(names)
	for _, d := range all {
		w.entry(d, modeDir, nil)
	}
	for _, name := range names {
		mode := uint32(modeFile)
		if t[name].exec {
			mode = modeExec
		}
		w.entry(name, mode, t[name].data)
	}
	w.entry("TRAILER!!!", 0, nil)
	if w.err != nil {
		return w.err
	}
	return w.w.Flush()
}

type cpioWriter struct {
	w     *bufio.Writer
	inode uint32
	at    int64
	err   error
}

func (w *cpioWriter) write(b []byte) {
	if w.err == nil {
		_, w.err = w.w.Write(b)
		w.at += int64(len(b))
	}
}

func (w *cpioWriter) pad() { w.write(make([]byte, -w.at&3)) }

func (w *cpioWriter) entry(name string, mode uint32, data []byte) {
	w.inode++
	head := "070701"
	for _, v := range []uint32{w.inode, mode, 0, 0, 1, 0, uint32(len(data)), 0, 0, 0, 0, uint32(len(name) + 1), 0} {
		head += fmt.Sprintf("%08x", v)
	}
	w.write([]byte(head))
	w.write([]byte(strings.TrimPrefix(name, "/") + "\x00"))
	w.pad()
	w.write(data)
	w.pad()
}
