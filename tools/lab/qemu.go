package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Limits of a boot. The machine may be shared with others, so they are generous:
// they are there to end what hangs.
const (
	initLimit  = 90 * time.Second // until userland
	kvmLimit   = 25 * time.Second // the same under KVM, which takes two where it is real
	suiteLimit = 8 * time.Minute  // of one suite, in the guest
	bootLimit  = 15 * time.Minute // of a whole boot
	quietLimit = 4 * time.Minute  // without a new line from the guest
	pollEvery  = 100 * time.Millisecond
)

// patience is how many times slower than usual the kernel is.
var patience time.Duration = 1

// boot is one run of a machine.
type boot struct {
	shape   *shape
	kernel  *kernel
	dir     string // logs, images, sockets
	accel   string
	cmd     *exec.Cmd
	ended   chan error
	control *control
}

func (b *boot) path(name string) string { return filepath.Join(b.dir, name) }

// kvmFails is a file in the cache that says that KVM was tried here in vain: where
// it is itself emulated, the try costs more than a whole boot.
const kvmFails = "kvm-fails"

// accelerator is KVM where there is one, and QEMU's own translator elsewhere.
func accelerator(cache string) string {
	if _, err := os.Stat(filepath.Join(cache, kvmFails)); err == nil {
		return "tcg"
	}
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		_ = f.Close()
		return "kvm"
	}
	return "tcg"
}

// cpus is the processor by accelerator. QEMU 7.2 translates cmpxchg16b wrongly now
// and then, which kills kernels that use it; and where KVM itself runs in a
// machine, the host may refuse the register that arch-capabilities stands for.
var cpus = map[string]string{"tcg": "max,-cx16", "kvm": "max,-arch-capabilities"}

// start runs QEMU. Its exit status says nothing: a guest that panics ends it well.
func (b *boot) start() error {
	accel := map[string]string{"kvm": "kvm", "tcg": "tcg,thread=multi"}[b.accel]
	args := []string{"-M", "q35,kernel-irqchip=split", "-accel", accel,
		"-cpu", cpus[b.accel],
		"-smp", "2", "-m", cmp.Or(b.shape.memory, "768M"), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", b.kernel.Image, "-initrd", b.path("initrd"), "-append", b.shape.cmdline(),
		"-serial", "file:" + b.path("console.log"), "-serial", "file:" + b.path("tests.log"),
		"-chardev", "socket,id=ctl,path=" + b.path("ctl.sock") + ",server=on,wait=off", "-serial", "chardev:ctl",
		"-qmp", "unix:" + b.path("qmp.sock") + ",server=on,wait=off"}
	for _, log := range []string{"tests.log", "console.log"} { // what an earlier boot said
		if err := os.Remove(b.path(log)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	b.cmd = exec.Command("qemu-system-x86_64", append(args, b.shape.args(b.dir)...)...)
	errs, err := os.Create(b.path("qemu.log"))
	if err != nil {
		return err
	}
	defer errs.Close()
	b.cmd.Stdout, b.cmd.Stderr = errs, errs
	if err := b.cmd.Start(); err != nil {
		return err
	}
	b.ended = make(chan error, 1)
	go func() { b.ended <- b.cmd.Wait() }()
	b.control = newControl(b.path("ctl.sock"), b.path("qmp.sock"))
	return nil
}

// errNoInit means that userland never began: then, and only then, a boot is tried
// again, since no test has run yet.
var errNoInit = errors.New("the guest never reached userland")

// wait ends when QEMU has, or when a limit passes.
func (b *boot) wait() error {
	defer b.control.close()
	begin := time.Now()
	heard, size := begin, int64(0)
	for {
		select {
		case err := <-b.ended:
			if !b.said("tests.log", markInit) {
				return errNoInit
			}
			if !b.said("tests.log", markDone) { // no more than a hint
				say("%s: QEMU ended before the guest was done: %v", b.shape.name, err)
			}
			return nil
		case <-time.After(pollEvery):
		}
		if info, err := os.Stat(b.path("tests.log")); err == nil && info.Size() != size {
			heard, size = time.Now(), info.Size()
		}
		why := ""
		switch {
		case b.panicked():
			time.Sleep(time.Second) // for the rest of what it says
			why = "the guest's kernel panicked"
		case size == 0 && b.accel == "kvm" && (time.Since(begin) > patience*kvmLimit || b.said("qemu.log", "KVM internal error")):
			why = "KVM does not work here"
		case size == 0 && time.Since(begin) > patience*initLimit:
			why = fmt.Sprintf("no userland after %v", patience*initLimit)
		case time.Since(begin) > patience*bootLimit:
			why = fmt.Sprintf("not done after %v", patience*bootLimit)
		case time.Since(heard) > patience*quietLimit:
			why = fmt.Sprintf("nothing heard for %v", patience*quietLimit)
		default:
			continue
		}
		b.kill()
		if !b.said("tests.log", markInit) {
			return fmt.Errorf("%s: %w", why, errNoInit)
		}
		return errors.New(why)
	}
}

// kill ends QEMU at once, as a power cut would.
func (b *boot) kill() {
	_ = b.cmd.Process.Kill()
	b.ended <- <-b.ended
}

// said tells whether a log of the machine contains a text.
func (b *boot) said(log, text string) bool {
	data, err := os.ReadFile(b.path(log))
	return err == nil && bytes.Contains(data, []byte(text))
}

// panicked tells whether the guest's kernel has given up. It may stand still then, for
// all that it was told to end the machine.
func (b *boot) panicked() bool { return b.said("console.log", "Kernel panic - not syncing") }

// count is how often a text stands in what the tests wrote.
func (b *boot) count(text string) int {
	data, _ := os.ReadFile(b.path("tests.log"))
	return bytes.Count(data, []byte(text))
}
