package ctl

import (
	"runtime"
	"runtime/debug"
)

type versionDoc struct {
	header
	Module   string `json:"module"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Version tells which program this is.
func Version(e *Env) error {
	d := versionDoc{header: head("version", nil), Module: "(devel)", Revision: "unknown",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		if b.Main.Version != "" {
			d.Module = b.Main.Version
		}
		dirty := ""
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				d.Revision = s.Value
			case "vcs.modified":
				if s.Value == "true" {
					dirty = " with changes"
				}
			}
		}
		d.Revision += dirty
	}
	if e.JSON {
		return e.emit(d)
	}
	return e.say("ugdsctl %s, revision %s, %s, %s", d.Module, d.Revision, d.Go, d.Platform)
}
