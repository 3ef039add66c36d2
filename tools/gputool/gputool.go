// Package gputool opens the GPU that a user names, and gives verbs and benches
// memory on it that they can fill and compare.
package gputool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ugds-store/ugds/gpu"
	"github.com/ugds-store/ugds/gpu/cuda"
	"github.com/ugds-store/ugds/gpu/hip"
	"github.com/ugds-store/ugds/gpu/host"
	"github.com/ugds-store/ugds/internal/base"
)

// GPU is one GPU that was asked for.
type GPU struct {
	Backend gpu.Backend
	Index   int
}

// Help says how a GPU is named.
const Help = "a number; cuda:N or hip:N for one library; host for a simulated one"

// simulatedBytes is the memory of a simulated GPU.
const simulatedBytes = 4 * base.GiB

// Open loads the library of the GPU that name means: a number counts NVIDIA's GPUs,
// or AMD's where there is none of those. ErrNotSupported with the reasons where no
// library or no GPU is found, ErrNotFound for a number that is too high, ErrInvalid
// for other names. Nothing is loaded before this call.
func Open(name string) (*GPU, error) {
	kind, number, both := strings.Cut(name, ":")
	if !both {
		if _, err := strconv.Atoi(name); err == nil {
			kind, number = "", name
		} else {
			number = "0"
		}
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || name == "" || kind != "" && kind != "cuda" && kind != "hip" && kind != "host" {
		return nil, base.WithHint(base.Errorf("use", "gpu "+strconv.Quote(name), base.ErrInvalid, "no such name"), "%s", Help)
	}
	g := &GPU{Index: n}
	if g.Backend, err = openBackend(kind); err != nil {
		return nil, err
	}
	if all := len(g.Backend.Devices()); n >= all {
		return nil, errors.Join(base.Errorf("use", "gpu "+name, base.ErrNotFound, "the library has %d", all), g.Backend.Close())
	}
	return g, nil
}

func openBackend(kind string) (gpu.Backend, error) {
	switch kind {
	case "host":
		return host.Open(host.Options{Bytes: simulatedBytes})
	case "cuda":
		return asBackend(cuda.Open(cuda.Options{}))
	case "hip":
		return asBackend(hip.Open(hip.Options{}))
	}
	b, nvidia := asBackend(cuda.Open(cuda.Options{}))
	if nvidia == nil {
		return b, nil
	}
	b, amd := asBackend(hip.Open(hip.Options{}))
	if amd == nil {
		return b, nil
	}
	noNVIDIA, _ := base.Parts(nvidia) // one hint is enough
	noAMD, _ := base.Parts(amd)
	return nil, base.WithHint(base.Errorf("use", "gpu", base.ErrNotSupported, "no NVIDIA GPU: %s; no AMD GPU: %s", noNVIDIA, noAMD),
		"leave --gpu out, or try --gpu host, which simulates one in host memory")
}

// asBackend keeps a nil pointer from becoming an interface that is not nil.
func asBackend[B gpu.Backend](b B, err error) (gpu.Backend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Device is the GPU.
func (g *GPU) Device() gpu.Device { return g.Backend.Devices()[g.Index] }

// String names the GPU: "NVIDIA H200 (cuda 0)".
func (g *GPU) String() string {
	in := g.Device().Info()
	return fmt.Sprintf("%s (%s %d)", in.Name, in.Backend, in.Index)
}

// Close releases the library. Memory must be closed before.
func (g *GPU) Close() error { return g.Backend.Close() }

// Memory is GPU memory, and as much pinned host memory in which it is filled and
// compared. One goroutine at a time may use it.
type Memory struct {
	mem    gpu.Memory
	host   gpu.HostMemory
	stream gpu.Stream
}

// NewMemory takes n bytes of the GPU and of pinned host memory.
func (g *GPU) NewMemory(n int64) (m *Memory, err error) {
	m = &Memory{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	d := g.Device()
	if m.stream, err = d.NewStream(); err != nil {
		return m, err
	}
	if m.mem, err = d.Alloc(n); err != nil {
		return m, err
	}
	m.host, err = d.AllocHost(n)
	return m, err
}

// Ptr is the first byte on the GPU.
func (m *Memory) Ptr() gpu.Ptr { return m.mem.Ptr() }

// Size in bytes.
func (m *Memory) Size() int64 { return m.mem.Size() }

// Host is the host memory: what Upload copies, and Download overwrites.
func (m *Memory) Host() []byte { return m.host.Bytes() }

// Upload copies [off, off+n) from the host memory to the GPU and waits for it.
func (m *Memory) Upload(off, n int64) error { return m.copy(off, n, false) }

// Download copies [off, off+n) from the GPU to the host memory and waits for it.
func (m *Memory) Download(off, n int64) error { return m.copy(off, n, true) }

// copyTimeout bounds one copy: a gigabyte takes a tenth of a second.
const copyTimeout = time.Minute

func (m *Memory) copy(off, n int64, toHost bool) error {
	if n == 0 {
		return nil
	}
	if !base.CheckRange(off, n, m.Size()) {
		return base.Errorf("copy", "gpu memory", base.ErrOutOfRange, "%d bytes at %d of %d", n, off, m.Size())
	}
	err := m.stream.Copy(gpu.Copy{Dev: m.Ptr() + gpu.Ptr(off), Host: m.Host()[off : off+n], ToHost: toHost})
	if err != nil {
		return err
	}
	tick, err := m.stream.Tick()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), copyTimeout)
	defer cancel()
	return m.stream.WaitTick(ctx, tick)
}

// Close frees the memory.
func (m *Memory) Close() error {
	var errs []error
	if m.stream != nil {
		errs = append(errs, m.stream.Close())
	}
	if m.mem != nil {
		errs = append(errs, m.mem.Close())
	}
	if m.host != nil {
		errs = append(errs, m.host.Close())
	}
	return errors.Join(errs...)
}
