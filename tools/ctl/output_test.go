package ctl

import (
	"strings"
	"testing"
)

// TestWrapped: a long value goes on in rows without a name, none longer than a
// line, unless one word is; the words are all there.
func TestWrapped(t *testing.T) {
	long := strings.Repeat("w", 2*wrapColumns)
	text := strings.Repeat("word and ", 40) + long + " end"
	rows := wrapped("name", text)
	var words []string
	for i, r := range rows {
		if (r[0] == "name") != (i == 0) || r[0] != "name" && r[0] != "" {
			t.Errorf("row %d is named %q", i, r[0])
		}
		if len(r[1]) > wrapColumns && r[1] != long {
			t.Errorf("row %d has %d columns", i, len(r[1]))
		}
		words = append(words, strings.Fields(r[1])...)
	}
	if strings.Join(words, " ") != text || len(rows) < 7 {
		t.Errorf("%d rows: %q", len(rows), words)
	}
	if rows := wrapped("name", ""); len(rows) != 1 || rows[0] != [2]string{"name", ""} {
		t.Errorf("an empty value: %q", rows)
	}
}
