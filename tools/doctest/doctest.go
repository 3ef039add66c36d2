// Package doctest keeps what the documents show in step with the code: the Go
// program of the README and its commands are run.
package doctest

import "strings"

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
