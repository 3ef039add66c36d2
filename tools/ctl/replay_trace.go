package ctl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"github.com/ugds-store/ugds/internal/base"
)

// maxTraceLine is the longest line of a trace, bytes.
const maxTraceLine = 64 * base.MiB

// traceRequest is a line of a trace.
type traceRequest struct {
	Timestamp float64  `json:"timestamp"` // ms
	IDs       []uint64 `json:"hash_ids"`
}

// trace reads requests, one JSON object a line, without ever holding more than
// one of them.
type trace struct {
	name string
	sc   *bufio.Scanner
	line int
}

func newTrace(name string, r io.Reader) *trace {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxTraceLine)
	return &trace{name: name, sc: sc}
}

// next gives the next request, io.EOF after the last.
func (t *trace) next() (*traceRequest, error) {
	for t.sc.Scan() {
		if t.sc.Err() != nil { // what was read of the last line before it failed
			break
		}
		t.line++
		b := bytes.TrimSpace(t.sc.Bytes())
		if len(b) == 0 {
			continue
		}
		r := &traceRequest{Timestamp: -1}
		var odd *json.UnmarshalTypeError
		if err := json.Unmarshal(b, r); errors.As(err, &odd) {
			return nil, base.Errorf("replay", t.name, base.ErrInvalid, "line %d: %s cannot be a %s", t.line, orElse(odd.Field, "a request"), odd.Value)
		} else if err != nil {
			return nil, base.Errorf("replay", t.name, base.ErrInvalid, "line %d: %w", t.line, err)
		}
		if slices.Contains(r.IDs, 0) && hasNull(b) {
			return nil, base.Errorf("replay", t.name, base.ErrInvalid, "line %d: hash_ids cannot be a null", t.line)
		}
		if r.IDs == nil || r.Timestamp < 0 {
			return nil, base.Errorf("replay", t.name, base.ErrInvalid,
				"line %d: a request has a timestamp, in ms, and hash_ids", t.line)
		}
		return r, nil
	}
	switch err := t.sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, base.Errorf("replay", t.name, base.ErrInvalid, "line %d is longer than %s", t.line+1, base.FormatBytes(maxTraceLine))
	case err != nil:
		return nil, base.Wrap("replay", t.name, pathCause(err))
	}
	return nil, io.EOF
}

// hasNull tells whether an id of the request in b is null, which decodes as 0.
func hasNull(b []byte) bool {
	var r struct {
		IDs []*uint64 `json:"hash_ids"`
	}
	return json.Unmarshal(b, &r) == nil && slices.Contains(r.IDs, nil)
}
