package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// series is the kernel that the lab boots: the oldest that has udmabuf in Debian's
// small "cloud" flavour, which also has the drivers we need as modules.
const series = "6.12"

// kernel is an unpacked kernel package with its headers.
type kernel struct {
	Release string // as uname -r says
	Image   string // file that QEMU boots
	Modules string // folder of the modules
	Headers string // folder to build modules against: make -C Headers M=…
}

// debs are the packages of a kernel release; each is named after it.
var debs = []string{"linux-image-%s-cloud-amd64", "linux-headers-%s-cloud-amd64", "linux-headers-%s-common", "linux-kbuild-%s"}

// findKernel gives the newest kernel of the series: the one in the cache, or with
// update, or an empty cache, the one that the archive has now. Kernels leave the
// archive when a newer one comes, so no release is named here.
func findKernel(cache string, update bool) (*kernel, error) {
	if k := newestCached(cache); k != nil && !update {
		return k, nil
	}
	apt, err := newPrivateApt(filepath.Join(cache, "apt"))
	if err != nil {
		return nil, err
	}
	if err := apt.run("update"); err != nil {
		return nil, err
	}
	release, err := apt.newest("linux-image", series)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "linux-"+release)
	if _, err := os.Stat(dir); err == nil {
		return openKernel(dir)
	}
	say("kernel %s: download and unpack", release)
	var names []string
	for _, d := range debs {
		names = append(names, fmt.Sprintf(d, release))
	}
	if err := apt.fetch(names, dir); err != nil {
		return nil, fmt.Errorf("fetch kernel %s: %w", release, err)
	}
	return openKernel(dir)
}

func newestCached(cache string) *kernel {
	dirs, _ := filepath.Glob(filepath.Join(cache, "linux-"+series+".*"))
	slices.SortFunc(dirs, func(a, b string) int { return compareVersions(b, a) })
	for _, d := range dirs {
		if k, err := openKernel(d); err == nil {
			return k
		}
	}
	return nil
}

// openKernel finds the parts of an unpacked kernel.
func openKernel(dir string) (*kernel, error) {
	k := &kernel{}
	for _, part := range []struct {
		to      *string
		pattern string
	}{{&k.Image, "boot/vmlinuz-*"}, {&k.Modules, "usr/lib/modules/*"}, {&k.Modules, "lib/modules/*"},
		{&k.Headers, "usr/src/linux-headers-*-cloud-amd64"}} {
		if found, _ := filepath.Glob(filepath.Join(dir, part.pattern)); len(found) > 0 {
			*part.to = found[0]
		}
	}
	if k.Image == "" || k.Modules == "" || k.Headers == "" {
		return nil, fmt.Errorf("%s is not a whole kernel: remove it", dir)
	}
	k.Release = filepath.Base(k.Modules)
	return k, nil
}

// privateApt is a package manager with lists and a cache of its own. What the
// machine is set up with stays as it is.
type privateApt struct{ dir, config string }

func newPrivateApt(dir string) (*privateApt, error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "sources.d"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	sources, err := debianSources()
	if err != nil {
		return nil, err
	}
	a := &privateApt{dir, filepath.Join(dir, "apt.conf")}
	conf := fmt.Sprintf("Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts %q;\nDir::State::lists %q;\n"+
		"Dir::Cache %q;\nAPT::Sandbox::User \"root\";\nAcquire::Retries \"3\";\nAcquire::Languages \"none\";\n",
		filepath.Join(dir, "sources.d"), filepath.Join(dir, "lists"), filepath.Join(dir, "cache"))
	err = os.WriteFile(filepath.Join(dir, "sources.d", "lab.sources"), []byte(sources), 0o644)
	if err == nil {
		err = os.WriteFile(a.config, []byte(conf), 0o644)
	}
	return a, err
}

var (
	deb822URI    = regexp.MustCompile(`(?m)^URIs:\s*(.+)$`)
	deb822Suites = regexp.MustCompile(`(?m)^Suites:\s*(.+)$`)
	deb822Signed = regexp.MustCompile(`(?m)^Signed-By:\s*(/\S+)$`)
	oneLine      = regexp.MustCompile(`(?m)^deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s`)
	signedBy     = regexp.MustCompile(`signed-by=(\S+)`)
	codename     = regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`)
)

// debianSources takes the archive that this machine uses, and names of it the
// suite of this machine and its backports.
func debianSources() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	m := codename.FindSubmatch(release)
	if err != nil || m == nil || !strings.Contains(string(release), "ID=debian") {
		return "", fmt.Errorf("the lab takes its kernel from Debian's archive, and this is not Debian")
	}
	suite := string(m[1])
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*.sources")
	lists, _ := filepath.Glob("/etc/apt/sources.list.d/*.list")
	for _, f := range append(append(files, "/etc/apt/sources.list"), lists...) {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if uri, key := archiveOf(string(text), suite); uri != "" {
			out := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s %s-backports\nComponents: main\n", uri, suite, suite)
			if key != "" {
				out += "Signed-By: " + key + "\n"
			}
			return out, nil
		}
	}
	return "", fmt.Errorf("no apt source of this machine has the suite %s", suite)
}

// archiveOf finds the archive with a suite in a file of apt sources, in either
// form, and the keyring that signs it.
func archiveOf(text, suite string) (uri, key string) {
	for _, stanza := range regexp.MustCompile(`\n\s*\n`).Split(text, -1) {
		u, s := deb822URI.FindStringSubmatch(stanza), deb822Suites.FindStringSubmatch(stanza)
		if u == nil || s == nil || !slices.Contains(strings.Fields(s[1]), suite) || len(strings.Fields(u[1])) == 0 {
			continue
		}
		if k := deb822Signed.FindStringSubmatch(stanza); k != nil {
			key = k[1]
		}
		return strings.Fields(u[1])[0], key
	}
	for _, m := range oneLine.FindAllStringSubmatch(text, -1) {
		if m[3] == suite {
			if k := signedBy.FindStringSubmatch(m[1]); k != nil {
				key = k[1]
			}
			return m[2], key
		}
	}
	return "", ""
}

func (a *privateApt) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+a.config)
	return cmd
}

func (a *privateApt) run(args ...string) error {
	if out, err := a.command("apt-get", append([]string{"-qq"}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// newest asks the archive for the newest release of a series of cloud kernels: the
// packages of a kind are called kind-RELEASE-cloud-amd64.
func (a *privateApt) newest(kind, series string) (string, error) {
	name := "^" + kind + "-(" + regexp.QuoteMeta(series) + `\.\S*)-cloud-amd64`
	out, err := a.command("apt-cache", "search", "--names-only", name+"$").Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache: %w", err)
	}
	best := ""
	for _, m := range regexp.MustCompile("(?m)"+name+" ").FindAllStringSubmatch(string(out), -1) {
		if best == "" || compareVersions(m[1], best) > 0 {
			best = m[1]
		}
	}
	if best == "" {
		return "", fmt.Errorf("the archive has no cloud kernel %s", series)
	}
	return best, nil
}

// compareVersions compares by the numbers in the names, from left to right.
func compareVersions(a, b string) int {
	digits := regexp.MustCompile(`\d+`)
	x, y := digits.FindAllString(a, -1), digits.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		m, _ := strconv.ParseUint(x[i], 10, 64)
		n, _ := strconv.ParseUint(y[i], 10, 64)
		if m != n {
			return cmp.Compare(m, n)
		}
	}
	return cmp.Compare(len(x), len(y))
}

// fetch downloads packages and unpacks them into dir, which appears when it is whole.
func (a *privateApt) fetch(names []string, dir string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	cmd := a.command("apt-get", append([]string{"-q", "download"}, names...)...)
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	files, _ := filepath.Glob(filepath.Join(part, "*.deb"))
	for _, f := range files {
		if out, err := exec.Command("dpkg-deb", "-x", f, part).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	if err := localHeaders(part, dir); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// localHeaders makes the Makefile of the headers name the files where they are
// unpacked instead of where the package manager would have put them.
func localHeaders(part, dir string) error {
	makefiles, _ := filepath.Glob(filepath.Join(part, "usr/src/linux-headers-*/Makefile"))
	for _, f := range makefiles {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		out := strings.ReplaceAll(string(text), "/usr/src/", dir+"/usr/src/")
		if err := os.WriteFile(f, []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}
