package ctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
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
		name, code := classify(err)
		text := err.Error()
		if code == ExitInterrupted { // below, what waits may call it a timeout
			text = interrupted{}.Error()
		}
		h.Error = &errorDoc{name, text}
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

// The widths of tables, in columns: of a terminal, which they keep to, of a name that
// stands beside its value and not above it, and of the last column at least.
const (
	screenColumns = 80
	wideName      = 28
	minLast       = 32
)

// table writes aligned rows of names and values, wrapped to the width of a terminal.
func (e *Env) table(rows ...[2]string) error {
	cells := make([][]string, len(rows))
	for i := range rows {
		cells[i] = rows[i][:]
	}
	return e.grid(screenColumns, cells)
}

func row(name, format string, args ...any) [2]string {
	return [2]string{name, fmt.Sprintf(format, args...)}
}

// grid writes rows of as many cells each, those of a column below each other. The last
// cells are wrapped to what the others leave of that many columns, 0 for no limit.
func (e *Env) grid(columns int, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	last := len(rows[0]) - 1
	widths := make([]int, last)
	room := columns
	for col := range widths {
		for _, r := range rows {
			if n := utf8.RuneCountInString(r[col]); col > 0 || n <= wideName {
				widths[col] = max(widths[col], n)
			}
		}
		room -= widths[col] + 2
	}
	var b strings.Builder
	for _, r := range rows {
		before := r[:last]
		if utf8.RuneCountInString(r[0]) > widths[0] {
			b.WriteString(r[0] + "\n")
			before = append([]string{""}, before[1:]...)
		}
		lines := []string{r[last]}
		if columns > 0 {
			lines = wrap(r[last], max(room, minLast))
		}
		for _, line := range lines {
			var all strings.Builder
			for col, cell := range before {
				fmt.Fprintf(&all, "%-*s  ", widths[col], cell)
			}
			b.WriteString(strings.TrimRight(all.String()+line, " ") + "\n")
			before = make([]string, last)
		}
	}
	_, err := io.WriteString(e.Stdout, b.String())
	return err
}

// wrap cuts text between words into lines of at most width columns, unless a word is
// longer; all but the first are indented.
func wrap(text string, width int) (lines []string) {
	line := ""
	for i, word := range strings.Split(text, " ") {
		switch {
		case i == 0:
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, line)
			line = "  " + word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
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
