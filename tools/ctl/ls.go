package ctl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ugds-store/ugds/store"
)

// LsOptions of Ls.
type LsOptions struct {
	Prefix string // "" is every key
	Long   bool   // with size, space, generation and state
	Limit  int    // 0 is no limit
}

// objectDoc is an object in a document.
type objectDoc struct {
	keyDoc
	Size       int64   `json:"size"`
	SlotBytes  int64   `json:"slot_bytes"`
	Generation uint64  `json:"generation"`
	Durable    bool    `json:"durable"`
	CRC32C     *string `json:"crc32c"` // null if the object has no checksum
	Devices    []int   `json:"devices"`
}

func docObject(o *store.ObjectInfo) objectDoc {
	d := objectDoc{docKey(o.Key), o.Size, o.SlotBytes, o.Generation, o.Durable, nil, o.Devices}
	if o.HasCRC {
		s := fmt.Sprintf("%08x", o.CRC32C)
		d.CRC32C = &s
	}
	if d.Devices == nil {
		d.Devices = []int{}
	}
	return d
}

// Ls lists keys in order.
func Ls(ctx context.Context, e *Env, t *Target, o LsOptions) error {
	prefix, err := t.parsePrefix("ls", o.Prefix)
	if err != nil {
		return e.fail("ls", err)
	}
	out := &listing{e: e, t: t, long: o.Long, w: bufio.NewWriterSize(e.Stdout, 64<<10)}
	err = e.withNamespace(ctx, "ls", t, true, func(n *store.Namespace) error {
		if err := out.begin(); err != nil || n == nil {
			return err
		}
		for info, err := range n.List(ctx, store.ListOptions{Prefix: prefix, Limit: o.Limit}) {
			if err != nil {
				return err
			}
			if err := out.object(&info); err != nil {
				return err
			}
		}
		return nil
	})
	if !out.begun {
		return e.fail("ls", err)
	}
	return out.end(err)
}

// listing writes one object after the other, so that a long list needs no memory.
type listing struct {
	e     *Env
	t     *Target
	long  bool
	begun bool
	w     *bufio.Writer
	count int64
	bytes int64
}

func (l *listing) begin() error {
	l.begun = true
	if !l.e.JSON {
		return nil
	}
	b, err := json.MarshalIndent(struct {
		header
		nameDoc
	}{head("ls", nil), docName(l.t.namespace())}, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.w, "%s,\n  \"objects\": [", bytes.TrimSuffix(b, []byte("\n}")))
	return err
}

func (l *listing) object(o *store.ObjectInfo) error {
	l.count++
	l.bytes += o.Size
	if l.e.JSON {
		b, err := json.Marshal(docObject(o))
		if err != nil {
			return err
		}
		comma := ","
		if l.count == 1 {
			comma = ""
		}
		_, err = fmt.Fprintf(l.w, "%s\n    %s", comma, b)
		return err
	}
	if !l.long {
		_, err := fmt.Fprintln(l.w, l.t.showKey(o.Key))
		return err
	}
	if l.count == 1 {
		if _, err := fmt.Fprintf(l.w, "%12s %12s %10s  %-8s %s\n", "BYTES", "SPACE", "GENERATION", "CRC-32C", "KEY"); err != nil {
			return err
		}
	}
	crc := strings.Repeat("-", 8)
	if o.HasCRC {
		crc = fmt.Sprintf("%08x", o.CRC32C)
	}
	_, err := fmt.Fprintf(l.w, "%12d %12d %10d  %s %s\n", o.Size, o.SlotBytes, o.Generation, crc, l.t.showKey(o.Key))
	return err
}

// end closes the document, also after a failure in the middle.
func (l *listing) end(err error) error {
	if l.e.JSON && !Quiet(err) {
		fault := ""
		if h := head("ls", err); h.Error != nil {
			b, _ := json.Marshal(h.Error) // two strings
			fault = fmt.Sprintf(",\n  \"error\": %s", b)
		}
		fmt.Fprintf(l.w, "\n  ],\n  \"count\": %d,\n  \"bytes\": %d%s\n}\n", l.count, l.bytes, fault)
	}
	if werr := l.w.Flush(); werr != nil && err == nil {
		err = werr
	}
	return err
}
