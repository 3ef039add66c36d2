package ctl

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestCheck: text and document tell of the same things.
func TestCheck(t *testing.T) {
	var text, doc bytes.Buffer
	if err := Check(&Env{Stdout: &text}); err != nil {
		t.Fatal(err)
	}
	if err := Check(&Env{Stdout: &doc, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var d checkDoc
	if err := json.Unmarshal(doc.Bytes(), &d); err != nil || len(d.Findings) == 0 {
		t.Fatalf("%v: %s", err, &doc)
	}
	for _, f := range d.Findings {
		if !strings.Contains(text.String(), Plain(f.Name)) || !strings.Contains(text.String(), Plain(f.Reason)) {
			t.Errorf("%+v is not in\n%s", f, &text)
		}
	}
}
