package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ownModules are the modules of this repository, and the files that kmod's build
// makes of them.
var ownModules = map[string]string{"ugds": "ugds.ko", "ugds_fakegpu": "test/ugds_fakegpu.ko", "ugds_fakenv": "test/ugds_fakenv.ko"}

// addOwn builds the repository's module for the guest's kernel, once, with those that
// play a GPU and NVIDIA's driver, and puts them into t. A bare one is built without
// NVIDIA's driver. A warning of the compiler is a failure.
func (b *builder) addOwn(t tree, order *[]string, bare bool) error {
	dir, names := filepath.Join(b.tmp, "kmod"), []string{"ugds_fakenv", "ugds", "ugds_fakegpu"}
	if bare {
		dir, names = dir+"-bare", names[1:]
	}
	if _, err := os.Stat(dir); err != nil {
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(b.root, "kmod"))); err != nil {
			return err
		}
		if err := makeModules(dir, b.kernel.Headers, bare); err != nil {
			return err
		}
	}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, ownModules[name]))
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(data)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := b.mods.add(t, order, n); err != nil {
				return err
			}
		}
		file := "mods/" + name + ".ko"
		t[file] = treeFile{data: data}
		*order = append(*order, file)
	}
	return nil
}

// makeModules builds a copy of kmod. A warning of the compiler, or of sparse where it is
// installed, is a failure.
func makeModules(dir, headers string, bare bool) error {
	args := []string{"-C", dir, "KDIR=" + headers, "UGDS_TEST=m", "W=1"}
	if !bare {
		args = append(args, "NVIDIA_SRC="+filepath.Join(dir, "test/nvidia"))
	}
	if _, err := exec.LookPath("sparse"); err == nil {
		args = append(args, "C=1")
	}
	out, err := exec.Command("make", append(args, "modules")...).CombinedOutput()
	if err == nil && strings.Contains(string(out), "warning:") {
		err = errors.New("there are warnings")
	}
	if err != nil {
		return fmt.Errorf("build kmod against %s: %w\n%s", headers, err, out)
	}
	return nil
}

// oldSeries is the oldest series of kernels that kmod is built for. No guest boots
// one: they have no udmabuf.
const oldSeries = "6.1"

// oldHeaders gives the headers of the oldest series.
func (b *builder) oldHeaders() (string, error) {
	b.archive.Lock()
	defer b.archive.Unlock()
	dir := filepath.Join(b.cache, "headers-"+oldSeries)
	if _, err := os.Stat(dir); err != nil {
		apt, err := newPrivateApt(filepath.Join(b.cache, "apt"))
		if err == nil {
			err = apt.run("update")
		}
		if err != nil {
			return "", err
		}
		release, err := apt.newest("linux-headers", oldSeries)
		if err != nil {
			return "", err
		}
		say("headers %s: download and unpack", release)
		names := []string{"linux-headers-" + release + "-cloud-amd64", "linux-headers-" + release + "-common", "linux-kbuild-" + oldSeries}
		if err := apt.fetch(names, dir); err != nil {
			return "", err
		}
	}
	headers, _ := filepath.Glob(filepath.Join(dir, "usr/src/linux-headers-*-cloud-amd64"))
	if len(headers) != 1 {
		return "", fmt.Errorf("%s is not whole: remove it", dir)
	}
	return headers[0], nil
}

// buildOld builds kmod against the headers of the oldest series.
func (b *builder) buildOld() error {
	headers, err := b.oldHeaders()
	if err != nil {
		return err
	}
	copied := filepath.Join(b.tmp, "kmod-"+oldSeries)
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(b.root, "kmod"))); err != nil {
		return err
	}
	return makeModules(copied, headers, false)
}
