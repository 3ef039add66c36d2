package ctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/ugds-store/ugds/internal/base"
)

// DocVersion is the version of the documents that JSON output consists of. It
// rises when a field changes its meaning or goes; new fields do not raise it.
const DocVersion = 1

// header begins every document.
type header struct {
	Version int       `json:"version"`
	Verb    string    `json:"verb"`
	Error   *errorDoc `json:"error,omitempty"`
}

type errorDoc struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

func head(verb string, err error) header {
	h := header{Version: DocVersion, Verb: verb}
	if err != nil && !errors.Is(err, errQuiet) {
		name, _ := classify(err)
		h.Error = &errorDoc{name, err.Error()}
	}
	return h
}

// emit writes one document.
func (e *Env) emit(doc any) error {
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return base.Wrap("write", "document", err)
	}
	_, err = e.Stdout.Write(append(b, '\n'))
	return err
}

// fail reports err as a document, if documents are wanted, and returns it. Wrong
// arguments make none.
func (e *Env) fail(verb string, err error) error {
	if wrong := new(usageError); errors.As(err, &wrong) {
		return err
	}
	if e.JSON && err != nil && !Quiet(err) {
		if werr := e.emit(head(verb, err)); werr != nil {
			return werr
		}
	}
	return err
}

// table writes aligned rows of names and values.
func (e *Env) table(rows ...[2]string) error {
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\n", r[0], r[1])
	}
	return w.Flush()
}

func row(name, format string, args ...any) [2]string {
	return [2]string{name, fmt.Sprintf(format, args...)}
}

// wrapColumns is the width of a long value in a table: a line of a terminal less
// the longest name.
const wrapColumns = 64

// wrapped is a row whose value may be long: it goes on in rows without a name.
func wrapped(name, text string) (rows [][2]string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > wrapColumns {
			rows = append(rows, [2]string{name, line})
			name, line = "", ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(rows, [2]string{name, line})
}

// say writes a line of text unless documents are wanted.
func (e *Env) say(format string, args ...any) error {
	if e.JSON {
		return nil
	}
	_, err := fmt.Fprintf(e.Stdout, format+"\n", args...)
	return err
}

// hints are what a list ends with: what can be done, each thing once.
type hints []string

func (h *hints) add(hint string) {
	if hint != "" && !slices.Contains(*h, hint) {
		*h = append(*h, hint)
	}
}

func (h hints) say(e *Env) error {
	for _, text := range h {
		if err := e.say("hint: %s", text); err != nil {
			return err
		}
	}
	return nil
}

// counted is a reader that moves a bar.
type counted struct {
	r   io.Reader
	bar Bar
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.bar.Add(int64(n))
	return n, err
}

// size prints n both ways.
func size(n int64) string {
	if n < base.KiB {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%s (%d bytes)", base.FormatBytes(n), n)
}

// Plain is text without what moves the cursor or changes colours: names of files
// and verbs can hold anything.
func Plain(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && n == 1 || r != '\n' && !unicode.IsPrint(r) {
			b.WriteString(strings.Trim(strconv.QuoteToASCII(text[:n]), `"`))
		} else {
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// count prints a number of things.
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
