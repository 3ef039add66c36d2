//go:build ugds_lab

package guest

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ugds-store/ugds/driver/probe"
)

var bindRounds = flag.Int("bind-rounds", 20, "how often a controller goes to our driver and back")

// kernelDisk gives the nth controller to the kernel's driver, and its block device.
func kernelDisk(t testing.TB, n int) (address, disk string) {
	t.Helper()
	address = nth(t, classNVMe, n)
	if _, err := probe.Bind(soon(t), address, probe.DriverKernel); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the disk appears", func() bool {
		c, err := probe.Choose(address, 0)
		disk = c.Path
		if err != nil || c.Transport != "file" {
			return false
		}
		_, err = os.Stat(disk)
		return err == nil
	})
	return address, disk
}

func sh(t testing.TB, words ...string) {
	t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(words, " "), err, out)
	}
}

// mark writes bytes to the head of a disk, or compares them.
func mark(t testing.TB, disk string, text []byte, write bool) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if write {
		if _, err := f.WriteAt(text, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		return
	}
	got := make([]byte, len(text))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, text) {
		t.Errorf("the disk begins with %.16q and not %.16q: %v", got, text, err)
	}
}

// TestBindRounds: a controller goes from the kernel's driver to ours and back, many
// times, and is always bound as asked, with what is on it.
func TestBindRounds(t *testing.T) {
	address, disk := kernelDisk(t, 0)
	text := bytes.Repeat([]byte("before "), 600)[:4096]
	mark(t, disk, text, true)
	for i := range *bindRounds {
		p, err := probe.Bind(soon(t), address, probe.DriverModule)
		if err != nil || !p.Changed || p.From != probe.DriverKernel || boundTo(address) != probe.DriverModule {
			t.Fatalf("round %d: %+v, bound to %q: %v", i, p, boundTo(address), err)
		}
		if i%5 == 0 { // and used in between
			d, err := probe.Open(soon(t), "pci:"+address, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			r := region(t, 4096, 0)
			do(t, d, read(0, r))
			if !bytes.Equal(r.CPU(), text) {
				t.Errorf("round %d: our driver reads %.16q", i, r.CPU())
			}
			if d.Info().Transport != "kdrv" {
				t.Errorf("transport %s", d.Info().Transport)
			}
			if err := d.Close(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err = probe.Bind(soon(t), address, probe.DriverKernel); err != nil || boundTo(address) != probe.DriverKernel {
			t.Fatalf("round %d, back: bound to %q: %v", i, boundTo(address), err)
		}
	}
	_, disk = kernelDisk(t, 0)
	mark(t, disk, text, false)
	d, err := probe.Open(soon(t), "pci:"+address, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Info().Transport != "block" {
		t.Errorf("transport %s", d.Info().Transport)
	}
	if err := d.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// TestBindRestores: a driver that does not take the controller leaves it where it was.
func TestBindRestores(t *testing.T) {
	address, disk := kernelDisk(t, 0)
	text := bytes.Repeat([]byte("stays "), 700)[:4096]
	mark(t, disk, text, true)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // the driver never comes
	defer cancel()
	_, err := probe.Bind(ctx, address, "virtio-pci")
	if err == nil || !strings.Contains(err.Error(), "as before") {
		t.Errorf("%v", err)
	}
	t.Log(err)
	if boundTo(address) != probe.DriverKernel {
		t.Errorf("bound to %q", boundTo(address))
	}
	_, disk = kernelDisk(t, 0)
	mark(t, disk, text, false)
}
