package lint

import (
	"bytes"
	"path"
	"regexp"
	"strings"
)

// workplace are path prefixes that mean something on one machine only. They are
// put together here so that this file does not name them.
var workplace = []string{"/wor" + "k/", "../sha" + "red", "/hom" + "e/", "/ro" + "ot/"}

func checkWorkplace(t *Tree, r *report) {
	t.text(func(f *File) {
		eachLine(f.Data, func(n int, line string) {
			for _, w := range workplace {
				if i := strings.Index(line, w); i >= 0 && (w[0] == '.' || i == 0 || !wordByte(line[i-1])) {
					r.add(f.Path, n, "names %s, a path of one workplace", w)
				}
			}
		})
	})
}

func wordByte(b byte) bool {
	return b == '/' || b == '.' || b == '_' || b == '-' || b == '$' || b == '}' || b >= '0' && b <= '9' || b|32 >= 'a' && b|32 <= 'z'
}

func eachLine(data []byte, fn func(n int, line string)) {
	for i, line := range strings.Split(string(data), "\n") {
		fn(i+1, line)
	}
}

var (
	mdLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	docMention = regexp.MustCompile(`\bdocs/[a-z0-9-]+\.md\b`)
	makeCall   = regexp.MustCompile("(?:^|[`$ ])make ([a-z][a-z-]*)\\b")
	codeSpan   = regexp.MustCompile("`([a-z][A-Za-z0-9_./-]*)`")
	makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z-]*)\s*:`)
)

// topFolders begin the path of a package; a code span that starts with one and
// has a slash names a file or folder of this repository.
var topFolders = map[string]bool{"alloc": true, "cmd": true, "docs": true, "driver": true, "gpu": true,
	"internal": true, "kmod": true, "meta": true, "store": true, "tools": true}

// checkLinks: documents link to files that exist, name packages that exist and
// make targets that exist; comments name documents that exist.
func checkLinks(t *Tree, r *report) {
	targets := map[string]bool{}
	for _, f := range t.Files {
		if f.Path == "Makefile" {
			for _, m := range makeTarget.FindAllSubmatch(f.Data, -1) {
				targets[string(m[1])] = true
			}
		}
	}
	t.text(func(f *File) {
		md, code := path.Ext(f.Path) == ".md", f.AST != nil && !under(f.Dir(), "tools/lint")
		eachLine(f.Data, func(n int, line string) {
			if md || code {
				for _, m := range docMention.FindAllString(line, -1) {
					if !t.exists(m) {
						r.add(f.Path, n, "names %s, which does not exist", m)
					}
				}
			}
			if md {
				checkDocLine(t, r, f, n, line, targets)
			}
		})
		if md && !bytes.HasSuffix(f.Data, []byte("\n")) {
			r.add(f.Path, 0, "does not end in a newline")
		}
	})
}

func checkDocLine(t *Tree, r *report, f *File, n int, line string, targets map[string]bool) {
	for _, m := range mdLink.FindAllStringSubmatch(line, -1) {
		to, _, _ := strings.Cut(m[1], "#")
		if to == "" || strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
			continue
		}
		if p := path.Join(f.Dir(), to); !t.exists(p) {
			r.add(f.Path, n, "links to %s, which does not exist", p)
		}
	}
	if strings.HasPrefix(line, "    ") || strings.Contains(line, "`") || strings.HasPrefix(line, "make ") {
		for _, m := range makeCall.FindAllStringSubmatch(line, -1) {
			if !targets[m[1]] {
				r.add(f.Path, n, "names make %s, which is no target", m[1])
			}
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
		first, rest, ok := strings.Cut(m[1], "/")
		if ok && rest != "" && topFolders[first] && !t.exists(strings.TrimSuffix(m[1], "/...")) {
			r.add(f.Path, n, "names %s, which does not exist", m[1])
		}
	}
}
