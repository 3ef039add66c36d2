package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestHolders: whoever has a disk open is named, also by way of a partition or past the
// block layer.
func TestHolders(t *testing.T) {
	b := newBus(t, DriverKernel)
	dev := "bus/pci/devices/" + anSSD
	b.put(dev+"/nvme/nvme0/dev", "0:0\n")
	b.put("class/nvme/nvme0/nvme0n1/x", "")
	b.put("class/block/nvme0n1/dev", "0:0\n")
	for part, text := range map[string]string{"nvme0n1p1": "1\n", "nvme0n1p2": "2\n", "queue": ""} {
		b.put("class/block/nvme0n1/"+part+"/partition", text)
	}
	if got := kernel(b.dir).partitions("nvme0n1"); !slices.Equal(got, []string{"nvme0n1p1", "nvme0n1p2"}) {
		t.Errorf("partitions %q", got)
	}
	if who, err := holders(kernel(b.dir), anSSD); err != nil || len(who) > 0 {
		t.Errorf("%q, %v", who, err)
	}
	b.put("class/nvme-generic/ng0n1/dev", "1:7\n") // of /dev/full
	f, err := os.Open("/dev/full")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.Command("sleep", "60")
	c.Stdin = f
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	it := fmt.Sprintf("process %d ", c.Process.Pid)
	who, err := holders(kernel(b.dir), anSSD)
	if err != nil || !slices.ContainsFunc(who, func(w string) bool { return strings.HasPrefix(w, it) && strings.HasSuffix(w, " /dev/ng0n1 open") }) {
		t.Errorf("%q, %v", who, err)
	}
}

// TestBound: a driver that the kernel names, and then not any more, has not taken the
// device.
func TestBound(t *testing.T) {
	b := newBus(t, DriverModule)
	d := b.binder()
	dir := "bus/pci/devices/" + anSSD
	if got := d.bound(dir); got != DriverModule {
		t.Errorf("bound to %q", got)
	}
	override := filepath.Join(b.dir, dir, "driver_override")
	if err := errors.Join(os.Remove(override), exec.Command("mkfifo", override).Run()); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() { got <- d.bound(dir) }()
	w, err := os.OpenFile(override, os.O_WRONLY, 0) // waits for the reader, as the device's lock would make it wait
	if err != nil {
		t.Fatal(err)
	}
	b.setDriver("")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if name := <-got; name != "" {
		t.Errorf("bound to %q", name)
	}
}
