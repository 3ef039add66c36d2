package ctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

const verbCheck = "check"

type checkDoc struct {
	header
	Findings []probe.Finding `json:"findings"`
	Settings []xfer.Setting  `json:"settings"`
}

// Check tells what this machine has for the direct path between disks and GPU memory,
// and what to do about what it lacks, with the settings of transfers and where each
// was set. It changes nothing. A store works without all of it, through the kernel and
// host memory, so it does not fail for what it finds, unless the settings ask for the
// direct path. The library of a GPU is loaded only if the target names one. With pairs
// it also sends patterns between the GPU and each device of the store, for which it
// opens the store.
func Check(ctx context.Context, e *Env, t *Target, pairs bool) error {
	return e.fail(verbCheck, checkMachine(ctx, e, t, pairs))
}

func checkMachine(ctx context.Context, e *Env, t *Target, pairs bool) error {
	set, err := e.gpuSettings(t)
	if err != nil {
		return err
	}
	doc := checkDoc{header: head(verbCheck, nil), Findings: probe.Machine(), Settings: set.List()}
	if pairs && (t.Dir == "" || t.GPU == "") {
		return usage(verbCheck, "--pairs needs --store and --gpu")
	}
	found, err := doc.gpu(t.GPU)
	if err != nil {
		return err
	}
	if pairs && found {
		if err := e.with(ctx, verbCheck, t, false, doc.pairs); err != nil {
			return err
		}
	}
	lacks := lacking(doc.Findings, set)
	doc.Findings = append(doc.Findings, lacks...)
	if e.JSON {
		err = e.emit(doc)
	} else {
		err = e.checkText(&doc)
	}
	if err == nil && (len(lacks) > 0 || pairs && !found) {
		err = quietly(ExitFailure)
	}
	return err
}

// gpu looks at the GPU of that name, if there is one, and tells whether it was found.
func (doc *checkDoc) gpu(name string) (found bool, err error) {
	if name == "" {
		return false, nil
	}
	gpus, err := explainGPUs(name)
	switch {
	case errors.Is(err, base.ErrInvalid): // no GPU has such a name
		return false, err
	case err != nil:
		why, mend := base.Parts(err)
		doc.Findings = append(doc.Findings, probe.Finding{Name: "gpu " + name, Verdict: probe.Refused, Reason: why, Mend: mend})
		return false, nil
	}
	for _, g := range gpus {
		doc.Findings = append(doc.Findings, g.findings("/")...)
		g.close()
	}
	return true, nil
}

// pairs tests each device of a store with its GPU.
func (doc *checkDoc) pairs(s *session) error {
	list, err := s.TestGPU(s.gpu.Index)
	for _, p := range list {
		f := probe.Finding{Name: fmt.Sprintf("gpu %d"+pairInfix+"%s", p.GPU, p.Target), Verdict: probe.Good, Reason: "patterns arrive in both directions, directly"}
		if !p.Direct {
			f.Verdict, f.Reason = probe.Fallback, "staged: "+p.Reason
		}
		if p.Err != nil {
			f.Reason += ": " + p.Err.Error()
		}
		doc.Findings = append(doc.Findings, f)
	}
	if slices.ContainsFunc(doc.Findings, isPair) {
		doc.Findings = slices.DeleteFunc(doc.Findings, func(f probe.Finding) bool { return f.Name == probe.PeerToPeer })
	}
	return err
}

// pairInfix stands in the name of a finding about a GPU and a device.
const pairInfix = " and "

func isPair(f probe.Finding) bool {
	return strings.HasPrefix(f.Name, "gpu ") && strings.Contains(f.Name, pairInfix)
}

func (e *Env) checkText(doc *checkDoc) error {
	var rows [][]string
	for _, f := range doc.Findings {
		rows = append(rows, []string{Plain(f.Name), f.Verdict, Plain(f.Reason)})
		if f.Mend != "" {
			rows = append(rows, []string{"", "", "→ " + Plain(f.Mend)})
		}
	}
	if err := e.grid(screenColumns, rows); err != nil {
		return err
	}
	return e.table(settingRows(doc.Settings)...)
}

// lacking is what the settings ask for and the findings do not have: at most one
// finding.
func lacking(all []probe.Finding, set xfer.Settings) []probe.Finding {
	if set.Compat != xfer.CompatOff && !set.Strict {
		return nil
	}
	// What counts is the pair, where it was tested: it needs what it needs.
	tested := slices.ContainsFunc(all, isPair)
	var lacks []string
	for _, f := range all {
		of := strings.HasPrefix(f.Name, "gpu ") && !strings.HasSuffix(f.Name, streamsPart) || f.Name == "module "+probe.DriverModule || f.Name == probe.NoControllers
		if tested {
			of = isPair(f)
		}
		if of && f.Verdict != probe.Good {
			lacks = append(lacks, f.Name+": "+f.Reason)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return []probe.Finding{{Name: "required", Verdict: probe.Refused, Mend: "mend what is named here, as its line says; or set compat_mode to AUTO, and strict to off",
		Reason: "the settings ask for the direct path; " + strings.Join(lacks, "; ")}}
}

// streamsPart is what a GPU may lack that the direct path does without.
const streamsPart = "streams"

// findings tells what a GPU has for the direct path. root is where sys lies.
func (p *probedGPU) findings(root string) []probe.Finding {
	in := p.dev.Info()
	name := fmt.Sprintf("gpu %d", in.Index)
	what := fmt.Sprintf("%s (%s), %s", in.Name, in.Backend, base.FormatBytes(in.Bytes))
	if in.PCI != "" {
		what += ", at " + in.PCI
		if bar := barBytes(root, in.PCI); bar > 0 {
			what += fmt.Sprintf(", %s of it reachable for devices", base.FormatBytes(bar))
		}
	}
	out := []probe.Finding{{Name: name, Verdict: probe.Good, Reason: what}}
	add := func(part string, good bool, yes, no, mend string) {
		f := probe.Finding{Name: name + " " + part, Verdict: probe.Good, Reason: yes}
		if !good {
			f.Verdict, f.Reason, f.Mend = probe.Fallback, no, mend
		}
		out = append(out, f)
	}
	add("export", p.doc.Register == "", "its memory has dma-bufs", "its memory has no dma-buf: "+p.doc.Register,
		"NVIDIA's open kernel modules export memory, from driver 515 on")
	add("visibility", in.Ordering >= gpu.OrderingOwner || in.CanFlush,
		fmt.Sprintf("write ordering %d, flush by the host: %s", in.Ordering, yesNo(in.CanFlush)),
		"nothing orders what a device writes before what a kernel reads, and nothing flushes it: no direct reads",
		"nothing but another GPU: values are read through host memory")
	add("kernels", in.Mover, "small values are carried, and checksums made, by kernels",
		"no kernels of ours: small values are copied one by one, and those with checksums pass host memory",
		"a GPU of NVIDIA's with compute capability 7.5 or more has them")
	add(streamsPart, in.MemOps, "streams write and await cells", "streams cannot await cells: ordered requests wait in the call",
		"a newer driver or GPU")
	return out
}

// barBytes is the size of the largest memory window of a PCI device, 0 if the kernel
// does not tell.
func barBytes(root, address string) (largest int64) {
	text, _ := os.ReadFile(filepath.Join(root, "sys/bus/pci/devices", filepath.Base(address), "resource"))
	for line := range strings.Lines(string(text)) {
		var first, last, flags uint64
		if n, _ := fmt.Sscanf(line, "0x%x 0x%x 0x%x", &first, &last, &flags); n == 3 && last > first {
			largest = max(largest, int64(last-first+1))
		}
	}
	return largest
}
