package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/tools/ctl"
)

// fields collects the fields of all documents of one verb.
type fields struct {
	typ  map[string]string // path → type
	seen map[string]int    // path → how often it had a value
	in   map[string]int    // path of an object → how often it was there
}

func (f *fields) add(path string, v any) {
	if v == nil {
		return
	}
	f.seen[path]++
	switch x := v.(type) {
	case map[string]any:
		f.in[path]++
		f.typ[path] = "object"
		for k, e := range x {
			f.add(strings.TrimPrefix(path+"."+k, "."), e)
		}
	case []any:
		f.typ[path] = "list"
		for _, e := range x {
			f.add(path+"[]", e)
		}
	case string:
		f.typ[path] = "string"
	case bool:
		f.typ[path] = "bool"
	case float64:
		f.typ[path] = "number"
	}
}

// timed is a number that a measurement lacks that was too short to tell: it depends
// on the machine whether one has it.
func (f *fields) timed(path string) { f.typ[path], f.seen[path] = "number", 0 }

func (f *fields) String() string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(f.typ)) {
		parent, _, nested := cutLast(p)
		if p == "" || f.typ[p] == "object" && !strings.HasSuffix(p, "[]") && !f.optional(p, parent) || strings.HasSuffix(p, "[]") && f.typ[p] == "object" {
			continue
		}
		if !nested {
			parent = ""
		}
		mark := ""
		if f.optional(p, parent) {
			mark = "?"
		}
		fmt.Fprintf(&b, "%-44s %s%s\n", p, f.typ[p], mark)
	}
	return b.String()
}

func (f *fields) optional(p, parent string) bool {
	return !strings.HasSuffix(p, "[]") && f.seen[p] < f.in[parent]
}

func cutLast(p string) (parent, name string, nested bool) {
	i := strings.LastIndex(p, ".")
	if i < 0 {
		return "", p, false
	}
	return p[:i], p[i+1:], true
}

// toldBy is the field that tells why the status is not 0 where there is no error.
var toldBy = map[string]string{"rm": "failed", "exists": "missing", "verify": "wrong", "fsck": "findings",
	"check": "verdict", "device list": "why", "device health": "ok", "format": "done", "device reset": "done", "device bind": "done", "device unbind": "done"}

// documentLines make documents in each way that a verb has; those in capitals are done by
// documents.
var documentLines = []string{
	"version",
	"format --store S --size 64MiB",
	"format --store S --size 64MiB --yes",
	"format --store S --yes --slab 2MiB",
	"stat --store S",
	"put --store S key FILE",
	"put --store S key FILE",
	"put --store S --hex 00ff FILE",
	"get --store S key OUT",
	"get --store S none OUT",
	"ls --store S",
	"ls --store none",
	"stat --store S",
	"stat --store S key",
	"stat --store S none",
	"rm --store S key none",
	"rm --store S --hex 00ff 00fe",
	"put --store S key FILE",
	"usage --store S",
	"usage --store none",
	"exists --store S key none",
	"exists --store S --hex 00ff",
	"exists --store none key",
	"verify --store S --all-namespaces",
	"verify --store none",
	"trim --store S",
	"format --store P --size 64MiB --sparse --yes",
	"trim --store P",
	"fsck --store S",
	"fsck --store none",
	"BREAK",
	"verify --store S",
	"fsck --store S --verify-data",
	"fsck --store S --verify-data --repair --yes",
	"demo --store D --size 16MiB",
	"demo --store D --size 16MiB --gpu=host",
	"check --store S --gpu host --pairs",
	"replay --store P --trace TRACE --block-bytes 4KiB",
	"replay --store P --trace TRACE --block-bytes 4KiB --gpu host",
	"replay --store P --trace none --block-bytes 4KiB",
	"bench --op put --size 64KiB --callers 1 --bytes 4MiB --rounds 1",
	"device list S/data.ugds sim:size=64MiB",
	"SYSFS",
	"check",
	"check --gpu host",
	"device info S/data.ugds sim:size=64MiB",
	"device health sim:size=64MiB",
	"device health S/data.ugds",
	"device reset sim:size=64MiB",
	"device reset sim:size=64MiB --yes",
	"explain --gpu host S/data.ugds sim:size=64MiB",
	"explain --gpu host none",
	"STATS",
	"stats --pid 1",
	"bench --device sim:size=64MiB,service=fixed --size 4KiB --bytes 8MiB", // long enough for a figure of the processor
	"bench --device S/data.ugds --size 4KiB --bytes 4KiB",
	"bench --workload gather --device sim:size=64MiB --bytes 1MiB --ranges 20 --rounds 1",
	"bench --scale 100 --rounds 1",
	"completion bash",
	"man M",
	// These fail.
	"format --store FILE --size 64MiB",
	"rm --store none key",
	"demo --store S --size 16MiB",
	"check --store none",
	"check --gpu-set compat_mode=OFF",
	"bench --store none --op put",
	"device list --store none",
	"device list FILE none",
	"device info none",
	"device reset none --yes",
	"device bind ffff:ff:1f.7",
	"device unbind ffff:ff:1f.7",
	"man FILE",
}

// documents runs every verb in each way that gives a document.
func documents(t *testing.T) map[string]*fields {
	dir := t.TempDir()
	s, file := filepath.Join(dir, "s"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("value"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := map[string]*fields{}
	add := func(text string) string { // and gives the verb
		var doc map[string]any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		verb, _ := doc["verb"].(string)
		if doc["version"] != 1.0 {
			t.Errorf("%s: version %v", verb, doc["version"])
		}
		if all[verb] == nil {
			all[verb] = &fields{map[string]string{}, map[string]int{}, map[string]int{}}
		}
		all[verb].add("", doc)
		return verb
	}
	trace := filepath.Join(dir, "trace")
	if err := os.WriteFile(trace, []byte(`{"timestamp": 0, "hash_ids": [1, 2, 1]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	names := strings.NewReplacer("TRACE", trace, "P", filepath.Join(dir, "p"), "M", filepath.Join(dir, "man"), "S", s, "FILE", file, "OUT", filepath.Join(dir, "out"), "D", filepath.Join(dir, "d"))
	for _, line := range documentLines {
		if line == "BREAK" { // one superblock copy, and the first values
			damageAt(t, filepath.Join(s, "data.ugds"), "64KiB")
			damageAt(t, filepath.Join(s, "data.ugds"), "2MiB")
			damageAt(t, filepath.Join(s, "data.ugds"), "2052KiB")
			continue
		}
		if line == "SYSFS" { // this machine may have no controllers
			addFake(t, add)
			continue
		}
		if line == "STATS" { // of a put that goes on
			addRunning(t, add)
			continue
		}
		args := strings.Fields(line)
		for i := range args {
			if !strings.HasPrefix(args[i], "-") && !strings.Contains(args[i], "iB") {
				args[i] = names.Replace(args[i])
			}
		}
		out, errs, code := call(t, "", append(args, "--json")...)
		verb := args[0]
		if verb == "device" {
			verb += " " + args[1]
		}
		if got := add(out); got != verb {
			t.Errorf("%s: verb %q\n%s%s", line, got, out, errs)
		}
		if code != 0 && !strings.Contains(out, "\n  \"error\": {") && toldBy[verb] == "" {
			t.Errorf("%s: exit %d without an error\n%s", line, code, out)
		}
	}
	return all
}

// addRunning adds what stats prints of a put that goes on.
func addRunning(t *testing.T, add func(text string) string) {
	t.Helper()
	put, stdin, _ := startShown(t)
	if _, err := stdin.Write(make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	for text := ""; !strings.Contains(text, "plain memory"); {
		text, _, _ = call(t, "", "stats", "--json", "--pid", strconv.Itoa(put.Process.Pid))
		add(text)
	}
	stdin.Close()
	if err := put.Wait(); err != nil {
		t.Fatal(err)
	}
}

// fakeSysfs is that of a machine with one controller.
func fakeSysfs(t *testing.T) string {
	t.Helper()
	sys := t.TempDir()
	for name, text := range map[string]string{
		"bus/pci/devices/0000:01:00.0/class": "0x010802", "bus/pci/devices/0000:01:00.0/nvme/nvme0/x": "",
		"class/nvme/nvme0/nvme0n1/x": "", "class/block/nvme0n1/size": "2048",
		"bus/pci/drivers/ugds/x": "", "bus/pci/drivers/nvme/x": "",
	} {
		path := filepath.Join(sys, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

// addFake adds what verbs say of a machine with one controller.
func addFake(t *testing.T, add func(string) string) {
	t.Helper()
	sys := fakeSysfs(t)
	add(fake(t, func(e *ctl.Env) error { return ctl.DeviceList(t.Context(), e, &ctl.Target{}, nil, sys) }))
	o := ctl.DeviceBindOptions{Address: "0000:01:00.0"}
	add(fake(t, func(e *ctl.Env) error { return ctl.DeviceBind(t.Context(), e, o, sys) }))
	add(fake(t, func(e *ctl.Env) error { return ctl.DeviceUnbind(t.Context(), e, o, sys) }))
}

// fake is the document that a verb writes on a machine that this one is not.
func fake(t *testing.T, do func(e *ctl.Env) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := do(&ctl.Env{Stdout: &out, JSON: true}); err != nil && !ctl.Quiet(err) {
		t.Fatal(err)
	}
	return out.String()
}

// complete demands of the documents that every verb is among them, that each which can
// fail did, and that every field was there which one of package ctl can have, or stands
// in the prose.
func complete(t *testing.T, all map[string]*fields, prose string) {
	t.Helper()
	names := map[string]bool{}
	for _, f := range all {
		for path := range f.typ {
			for name := range strings.SplitSeq(strings.ReplaceAll(path, "[]", ""), ".") {
				names[name] = true
			}
		}
	}
	for _, v := range verbs(t) {
		switch f := all[verbName(v)]; {
		case v.HasSubCommands():
		case f == nil:
			t.Errorf("no document of %s", verbName(v))
		case f.seen["error"] == 0 && verbName(v) != "version" && verbName(v) != "completion": // which only print
			t.Errorf("no %s that failed", verbName(v))
		}
	}
	sources, err := filepath.Glob("../../tools/ctl/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) == "replay_trace.go" { // of what is read
			continue
		}
		for _, m := range jsonTag.FindAllStringSubmatch(string(text), -1) {
			if !names[m[1]] && !strings.Contains(prose, "`"+m[1]+"`") {
				t.Errorf("%s: no document has %q", filepath.Base(path), m[1])
			}
		}
	}
}

// jsonTag finds the names of fields in documents.
var jsonTag = regexp.MustCompile("`json:\"([a-z0-9_]+)[^`]*`")

// TestDocumentedFields compares the fields of every document with docs/cli.md.
// With -rewrite it writes them there.
func TestDocumentedFields(t *testing.T) {
	const path, begin = "../../docs/cli.md", "can be null or absent.\n"
	all := documents(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, tail, ok := strings.Cut(string(data), begin)
	if !ok {
		t.Fatalf("%s has no line that ends in %q", path, begin)
	}
	complete(t, all, head)
	for verb, field := range toldBy {
		if !strings.Contains(strings.Join(strings.Fields(head), " "), "`"+field+"` of `"+verb+"`") && field != "done" {
			t.Errorf("it does not say that %s tells in %s why it failed", verb, field)
		}
	}
	all["bench"].timed("device.rows[].cpu_seconds_per_request")
	for _, name := range []string{"clean_open_cpu_seconds", "index_bytes_per_object", "off_heap_bytes_per_object", "rss_bytes_per_object",
		"open_peak_bytes_per_object", "growth_peak_bytes_per_object", "lookup_ns", "exists_keys_per_s"} {
		all["bench"].timed("scales[]." + name)
	}
	var b strings.Builder
	for _, verb := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "\n`%s`:\n\n```\n%s```\n", verb, all[verb])
	}
	if tail == b.String() {
		return
	}
	if flag.Lookup("rewrite").Value.String() != "true" {
		t.Fatalf("the fields in %s are not those of the documents; -rewrite puts these there:\n%s", path, b.String())
	}
	if err := os.WriteFile(path, []byte(head+begin+b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
