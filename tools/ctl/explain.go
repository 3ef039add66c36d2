package ctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/file"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
	"github.com/ugds-store/ugds/tools/gputool"
)

type explainDoc struct {
	header
	Targets  []explainRow   `json:"targets"`
	GPUs     []explainGPU   `json:"gpus"`
	NoGPU    string         `json:"no_gpu"` // why there is none, "" if there is one
	Settings []xfer.Setting `json:"settings"`
}

// explainRow is a target, and how bytes would go between it and each GPU.
type explainRow struct {
	Target    string       `json:"target"`
	Transport string       `json:"transport"` // "file" for files that are read as they are
	Reasons   []string     `json:"reasons"`
	Ways      []explainWay `json:"ways"`
}

// explainWay is one direction between a target and a GPU, for one size.
type explainWay struct {
	GPU    int    `json:"gpu"` // in gpus
	Write  bool   `json:"write"`
	Bytes  int64  `json:"bytes"`
	Path   string `json:"path"` // "" if it would be refused
	Reason string `json:"reason"`
}

// explainGPU is a GPU and what it can do about the direct way.
type explainGPU struct {
	Name     string `json:"name"`
	DMABuf   bool   `json:"dma_buf"`
	Ordering int    `json:"write_ordering"` // CUDA's number
	CanFlush bool   `json:"can_flush"`
	MemOps   bool   `json:"stream_memory_operations"`
	Kernel   bool   `json:"kernel"`   // small values are carried by one
	Register string `json:"register"` // why memory of it has no dma-buf, "" if it has
}

// probeBytes is the GPU memory that explain takes for a moment.
const probeBytes = gpu.PinPage

// Explain tells for each target and GPU how bytes would go between them, and
// every reason. It moves none.
func Explain(ctx context.Context, e *Env, t *Target, targets []string, size int64) error {
	return e.fail("explain", explain(ctx, e, t, targets, size))
}

func explain(ctx context.Context, e *Env, t *Target, targets []string, size int64) error {
	if size < 1 {
		return usage("explain", "--size %d: at least 1", size)
	}
	set, err := e.gpuSettings(t)
	if err != nil {
		return err
	}
	doc := explainDoc{header: head("explain", nil), Targets: []explainRow{}, GPUs: []explainGPU{}, Settings: set.List()}
	gpus, err := explainGPUs(t.GPU)
	if err != nil {
		if t.GPU != "" {
			return err
		}
		why, _ := base.Parts(err) // what helps is for those who named one
		doc.NoGPU = why + " (--gpu host simulates one in host memory)"
	}
	defer func() {
		for _, g := range gpus {
			g.close()
		}
	}()
	for _, g := range gpus {
		doc.GPUs = append(doc.GPUs, g.doc)
	}
	for _, target := range targets {
		row, err := explainTarget(ctx, target, gpus, set, size)
		if err != nil {
			return err
		}
		doc.Targets = append(doc.Targets, *row)
	}
	if e.JSON {
		return e.emit(doc)
	}
	return e.explainText(&doc)
}

// probedGPU is a GPU with a little registered memory.
type probedGPU struct {
	g   *gputool.GPU
	dev gpu.Device
	mem gpu.Memory
	tab *gpu.Table
	reg *gpu.Registration
	doc explainGPU
}

// explainGPUs opens the GPU that was named, or every one of the library that has
// some.
func explainGPUs(name string) ([]*probedGPU, error) {
	all := name == ""
	if all {
		name = "0"
	}
	g, err := gputool.Open(name)
	if err != nil {
		return nil, err
	}
	var out []*probedGPU
	for i, dev := range g.Backend.Devices() {
		if !all && i != g.Index {
			continue
		}
		p := &probedGPU{g: g, dev: dev, tab: gpu.NewTable(g.Backend, gpu.TableOptions{Export: true})}
		in := dev.Info()
		p.doc = explainGPU{fmt.Sprintf("%s (%s %d)", in.Name, in.Backend, in.Index), in.DMABuf, int(in.Ordering), in.CanFlush, in.MemOps, in.Mover, ""}
		if p.mem, err = dev.Alloc(probeBytes); err == nil {
			p.reg, err = p.tab.Register(p.mem.Ptr(), probeBytes)
		}
		if err != nil {
			p.doc.Register = err.Error()
		} else if _, p.doc.Register = p.reg.Direct(); p.reg.Err() != nil {
			p.doc.Register += ": " + p.reg.Err().Error()
		}
		out = append(out, p)
	}
	return out, nil
}

func (p *probedGPU) close() {
	if p.reg != nil {
		_ = p.reg.Close()
	}
	if p.mem != nil {
		_ = p.mem.Close()
	}
	_ = p.g.Close() // closing the library twice is harmless
}

// explainTarget looks at one target. Files are looked at as they are, without the
// lock of a device: a store may have them.
func explainTarget(ctx context.Context, target string, gpus []*probedGPU, set xfer.Settings, size int64) (*explainRow, error) {
	pt, err := probe.Parse(target)
	if err != nil {
		return nil, err
	}
	row := &explainRow{Target: target, Transport: "file", Ways: []explainWay{}}
	var end xfer.Endpoint
	peers := false
	if pt.Scheme == "file" {
		f, err := file.OpenFile(pt.Rest, file.FileOptions{})
		if err != nil {
			return nil, forbidden(err, target)
		}
		defer f.Close()
		n, err := f.Size()
		if err == nil {
			err = emptyDisk(pt.Rest, n)
		}
		if err != nil {
			return nil, err
		}
		row.Reasons, end = f.Reasons(), xfer.File(f)
	} else {
		d, err := probe.Open(ctx, target, probe.Options{File: file.Options{ReadOnly: true, Owner: "ugdsctl"}})
		if err != nil {
			return nil, err
		}
		defer closeDevices([]driver.Device{d})
		in := d.Info()
		peers = in.Peers
		row.Transport, row.Reasons = in.Transport, append(in.Reasons, openedBy("explain", true))
		if end, err = xfer.Extent(d, 0, in.Capacity); err != nil {
			return nil, err
		}
	}
	for i, g := range gpus {
		for _, write := range []bool{false, true} {
			w, err := g.way(end, set, write, size)
			if err != nil {
				return nil, err
			}
			direct := peers && g.doc.Register == "" && size >= set.Threshold && strings.Contains(w.Reason, xfer.ReasonNoTransport)
			w.ofStore(pt.Scheme != "file", direct)
			w.GPU = i
			row.Ways = append(row.Ways, w)
		}
	}
	return row, nil
}

// emptyDisk refuses a block device of no bytes, as of an empty card reader: its node is
// there, and nothing goes between it and a GPU.
func emptyDisk(path string, size int64) error {
	if st, err := unix.StatPath(path); err != nil || st.Kind != unix.KindBlock || size > 0 {
		return err
	}
	return base.WithHint(base.Errorf("open", path, base.ErrInvalid, "%w", &base.TooSmall{}), "name another device")
}

// ofStore makes w that of a value of a store on a device: of whole blocks that may go
// directly, and of a last part of a block, which passes host memory even in strict.
func (w *explainWay) ofStore(device, direct bool) {
	tail := w.Bytes % base.StoreBlock
	switch {
	case !device:
	case w.Bytes == tail:
		w.Path, w.Reason = driver.PathTail.String(), "part of a block, which passes host memory even when strict is on"
	case direct:
		w.Path, w.Reason = driver.PathDirect.String(), "if the self-test of the pair passes: check --pairs"
		if tail > 0 {
			w.Reason += fmt.Sprintf("; the last %s, part of a block, through host memory", base.FormatBytes(tail))
		}
	}
}

func (p *probedGPU) way(end xfer.Endpoint, set xfer.Settings, write bool, size int64) (explainWay, error) {
	w := explainWay{Write: write, Bytes: size}
	m, err := xfer.New(p.g.Backend, p.dev, p.tab, set.Options())
	if err != nil {
		return w, err
	}
	path, err := m.Way(end, size, write, p.reg)
	if w.Reason = path.Reason; err != nil {
		w.Reason = err.Error()
	} else {
		w.Path = path.Path.String()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return w, m.Close(ctx)
}

func (e *Env) explainText(doc *explainDoc) error {
	for _, t := range doc.Targets {
		rows := [][2]string{row("target", "%s", t.Target), row("  transport", "%s", t.Transport)}
		for _, r := range t.Reasons {
			rows = append(rows, row("", "%s", r))
		}
		for _, w := range t.Ways {
			what := "to the GPU"
			if w.Write {
				what = "from the GPU"
			}
			if w.Path == "" {
				rows = append(rows, row("  "+what, "refused: %s", w.Reason))
			} else {
				rows = append(rows, row("  "+what, "%s, %s: %s", doc.GPUs[w.GPU].Name, w.Path, orNone(w.Reason)))
			}
		}
		if err := e.table(rows...); err != nil {
			return err
		}
	}
	var rows [][2]string
	for _, g := range doc.GPUs {
		can := []string{"dma-buf " + yesNo(g.DMABuf), fmt.Sprintf("write ordering %d", g.Ordering), "flush " + yesNo(g.CanFlush),
			"stream memory operations " + yesNo(g.MemOps), "kernel " + yesNo(g.Kernel)}
		rows = append(rows, row("gpu", "%s: %s", g.Name, strings.Join(can, ", ")))
		if g.Register != "" {
			rows = append(rows, row("", "its memory has no dma-buf: %s", g.Register))
		}
	}
	if doc.NoGPU != "" {
		rows = append(rows, row("gpu", "none: %s", doc.NoGPU))
	}
	return e.table(append(rows, settingRows(doc.Settings)...)...)
}

func settingRows(set []xfer.Setting) (rows [][2]string) {
	for _, s := range set {
		rows = append(rows, row("setting", "%s = %s (%s)", s.Name, s.Value, s.Source))
	}
	return rows
}
