package bench

import (
	"context"
	"encoding/json"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/internal/unix"
)

// FindFio is the path of fio, or "" when it is not installed.
func FindFio() string {
	path, err := exec.LookPath("fio")
	if err != nil {
		return ""
	}
	return path
}

type fioSide struct {
	Bytes   int64   `json:"io_bytes"`
	RunMS   float64 `json:"runtime"`
	BW      float64 `json:"bw_bytes"`
	Latency struct {
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

type fioDoc struct {
	Jobs []struct {
		Error int     `json:"error"`
		Read  fioSide `json:"read"`
	} `json:"jobs"`
}

// fioPasses is how often fio reads everything: its clock counts milliseconds.
const fioPasses = 2

// runFio reads the raw slots in random order, each once a pass, with registered
// buffers and a registered file.
func runFio(ctx context.Context, c Case) (*Sample, error) {
	if c.Op != OpGet || c.Callers != 1 {
		return nil, base.Errorf("bench", c.Subject, base.ErrNotSupported, "only gets of one caller are measured with fio")
	}
	depth := c.Depth
	if depth == 0 {
		depth = c.Batch
	}
	runtime.LockOSThread() // it ends with this process
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Place.Fio, "--name=bench", "--filename="+c.Place.rawPath(), "--readonly",
		"--rw=randread", "--bs="+strconv.FormatInt(c.stride(), 10), "--size="+strconv.FormatInt(c.payload(), 10),
		"--loops="+strconv.Itoa(fioPasses), "--ioengine=io_uring", "--iodepth="+strconv.Itoa(depth), "--direct=1",
		"--fixedbufs=1", "--registerfiles=1", "--randseed="+strconv.FormatUint(c.Seed&(1<<31-1), 10),
		"--output-format=json")
	cmd.SysProcAttr = unix.DieWithParent()
	out, err := cmd.Output()
	if err != nil {
		return nil, base.Wrap("run", c.Place.Fio, err)
	}
	var doc fioDoc
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, base.Wrap("run", c.Place.Fio, err)
	}
	if len(doc.Jobs) != 1 || doc.Jobs[0].Error != 0 || doc.Jobs[0].Read.BW <= 0 || doc.Jobs[0].Read.Bytes != fioPasses*c.payload() {
		return nil, base.Errorf("run", c.Place.Fio, base.ErrCorrupt, "it did not read %d bytes", fioPasses*c.payload())
	}
	r := doc.Jobs[0].Read
	s := &Sample{Case: c, Seconds: float64(c.payload()) / r.BW, Ops: int64(c.Objects), Bytes: int64(c.Objects) * c.Size,
		DeviceBytes: ptr(r.Bytes / fioPasses), Engine: "fio, io_uring", Note: "bytes are not compared"}
	for name, at := range map[string]**float64{"50.000000": &s.P50, "99.000000": &s.P99} {
		if v, ok := r.Latency.Percentile[name]; ok {
			*at = ptr(v / 1e9)
		}
	}
	return s, nil
}
