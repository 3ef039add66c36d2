// Package doctest keeps what the documents show in step with the code: the Go
// code of the README is an example of this package that is compiled and run,
// and the commands of the README are run.
package doctest

import (
	"fmt"
	"strings"
)

// Fenced gives the text of the fenced blocks of a language in a document.
func Fenced(doc, language string) []string {
	var blocks []string
	for {
		_, rest, ok := strings.Cut(doc, "\n```"+language+"\n")
		if !ok {
			return blocks
		}
		var body string
		if body, doc, ok = strings.Cut(rest, "\n```\n"); !ok {
			return blocks
		}
		blocks = append(blocks, body+"\n")
		doc = "\n" + doc
	}
}

// Between gives the lines of code between the markers "// begin name" and
// "// end name", without the indentation of the first.
func Between(code, name string) (string, error) {
	_, rest, ok := strings.Cut(code, "// begin "+name+"\n")
	body, _, ok2 := strings.Cut(rest, "// end "+name+"\n")
	if !ok || !ok2 {
		return "", fmt.Errorf("no part %q", name)
	}
	body = strings.TrimRight(body, "\t ")
	indent := body[:len(body)-len(strings.TrimLeft(body, "\t"))]
	var b strings.Builder
	for line := range strings.Lines(body) {
		b.WriteString(strings.TrimPrefix(line, indent))
	}
	return b.String(), nil
}
