package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	cutSSD  = 128 * mib // bytes of the SSD
	cutMeta = 96 * mib  // of the disk of the metadata
	// cutAfter is how many puts are answered at least before a cut, and cutSpread how
	// many more at most; cutWait bounds the wait for them.
	cutAfter  = 5
	cutSpread = 40
	cutWrites = 60 // and how many writes later the cut comes at most
	cutWait   = 5 * time.Minute
	cutIdle   = 30 * time.Second
	markPut   = "cut put " // of the guest: one more put was answered
)

// cutDevices are a controller and a disk for the metadata on crashDisks.
func cutDevices() []string {
	nbd := func(node, name string) []string {
		return []string{"-blockdev", fmt.Sprintf("driver=nbd,node-name=f%s,server.type=unix,server.path=DIR/%s.nbd", node, name),
			"-blockdev", fmt.Sprintf("driver=raw,node-name=%s,file=f%s", node, node)}
	}
	return join(nbd("d0", "ssd"), []string{"-device", "nvme,id=nvme0,serial=LAB0,drive=d0,max_ioqpairs=8"},
		nbd("m0", "meta"), []string{"-device", "virtio-blk-pci,drive=m0"})
}

// runCuts boots a machine again and again and takes its power away while a store works,
// on the SSD and on the disk of the metadata at one moment. Each boot checks what the
// one before has left, and is told how many puts had been answered; the last one does
// only that.
func runCuts(b *builder, s *shape, cuts int) (*result, error) {
	dir := filepath.Join(b.tmp, s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if !options.keep {
		defer os.RemoveAll(dir)
	}
	seed := options.seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	say("%s: -seed %d", s.name, seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	all := newCrashDisks(seed)
	meta, err := emptyFileSystem(filepath.Join(dir, "meta.img"), cutMeta)
	if err != nil {
		return nil, err
	}
	all.add(filepath.Join(dir, "ssd.nbd"), make([]byte, cutSSD))
	all.add(filepath.Join(dir, "meta.nbd"), meta)
	total, done := &result{}, 0
	for n := 0; n <= cuts; n++ {
		u := s.suites[0]
		u.args = append(append([]string{}, u.args...), "-cut-first="+fmt.Sprint(n == 0), "-cut-last="+fmt.Sprint(n == cuts),
			"-cut-done="+fmt.Sprint(done))
		one := *s
		one.suites = []suite{u}
		if err := b.initrd(&one, filepath.Join(dir, "initrd")); err != nil {
			return nil, err
		}
		wait := cutAfter + rnd.IntN(cutSpread)
		if n == cuts {
			wait = 0
		}
		r, acked, err := cutOnce(b, &one, all, dir, wait, 1+rnd.IntN(cutWrites))
		if err != nil {
			return nil, err
		}
		done = max(done, acked)
		total.passed, total.failed = total.passed+r.passed, total.failed+r.failed
		total.faults = append(total.faults, r.faults...)
		total.cover = append(total.cover, r.cover...)
		if !r.ok() {
			break
		}
	}
	say("%s: %d cuts, %d puts answered, all there", s.name, cuts, done)
	return total, nil
}

// cutOnce is cutBoot, and once more for a boot that never reached userland: then the
// disks are as they were.
func cutOnce(b *builder, s *shape, all *crashDisks, dir string, wait, writes int) (r *result, acked int, err error) {
	r, acked, err = cutBoot(b, s, all, dir, wait, writes)
	if errors.Is(err, errNoInit) {
		say("%s: %v; once more", s.name, err)
		r, acked, err = cutBoot(b, s, all, dir, wait, writes)
	}
	if r != nil { // it says what went wrong
		err = nil
	}
	return r, acked, err
}

// cutBoot boots once, and takes the power away so many writes after so many puts were
// answered, or lets the boot end when wait is 0. It tells how many had been.
func cutBoot(b *builder, s *shape, all *crashDisks, dir string, wait, writes int) (r *result, acked int, err error) {
	m := &boot{shape: s, kernel: b.kernel, dir: dir, accel: b.accelerator()}
	if err := all.powerOn(); err != nil {
		return nil, 0, err
	}
	defer all.powerOff()
	if err := m.start(); err != nil {
		return nil, 0, err
	}
	if wait == 0 {
		err := m.wait()
		return m.judge(err), 0, err
	}
	defer m.control.close()
	for end := time.Now().Add(cutWait); m.count(markPut) < wait; time.Sleep(5 * time.Millisecond) {
		if m.panicked() && !m.said("tests.log", markInit) {
			m.kill()
			return m.judge(errNoInit), 0, errNoInit
		}
		if m.said("tests.log", markEnd) || time.Now().After(end) {
			m.kill()
			return m.judge(errors.New("the store did not get so far that it could be cut")), 0, nil
		}
	}
	select {
	case <-all.arm(writes):
	case <-time.After(cutIdle):
		all.cut()
	}
	m.kill()
	text, _ := os.ReadFile(m.path("tests.log"))
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, markPut+"%d", &acked); err == nil {
			acked++
		}
	}
	say("%s: cut with %d writes open, %d puts answered", s.name, all.open, acked)
	return &result{passed: 1}, acked, nil
}

// emptyFileSystem is the content of a disk with an empty ext4.
func emptyFileSystem(file string, size int64) ([]byte, error) {
	if err := makeImage(file, size); err != nil {
		return nil, err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w\n%s", err, out)
	}
	return os.ReadFile(file)
}
