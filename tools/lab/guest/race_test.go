//go:build ugds_lab

package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ugds-store/ugds/driver/hw"
	"github.com/ugds-store/ugds/driver/hw/kdrv"
	"github.com/ugds-store/ugds/driver/hw/vfio"
	"github.com/ugds-store/ugds/internal/base"
)

const (
	// raceAddress is the controller for which TestDeviceRaceChild races.
	raceAddress = "UGDS_LAB_RACE"
	racers      = 3
	raceRounds  = 10
)

// TestDeviceRaceChild opens a controller for a line that it reads, closes it for the next,
// and so on. It is nothing by itself.
func TestDeviceRaceChild(t *testing.T) {
	address := os.Getenv(raceAddress)
	if address == "" {
		t.Fatal("no controller")
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var d hw.Device
		var err error
		if *transport == "vfio" {
			d, err = asHW(vfio.Open(address))
		} else {
			d, err = asHW(kdrv.Open(soon(t), address))
		}
		switch {
		case err == nil:
			fmt.Println("won")
		case errors.Is(err, base.ErrLocked):
			fmt.Println("locked:", err)
		default:
			fmt.Println("failed:", err)
		}
		in.Scan()
		if d != nil {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		fmt.Println("done")
	}
}

// racer is a process that races.
type racer struct {
	cmd *exec.Cmd
	to  io.Writer
	out *bufio.Scanner
}

func startRacer(t testing.TB, address string) *racer {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run=^TestDeviceRaceChild$", "-transport", *transport)
	c.Env = append(os.Environ(), raceAddress+"="+address)
	to, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = to.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	r := &racer{c, to, bufio.NewScanner(out)}
	r.hear(t, "ready")
	return r
}

// hear reads up to a line that begins with one of the words, and gives it.
func (r *racer) hear(t testing.TB, words ...string) string {
	t.Helper()
	for r.out.Scan() {
		for _, w := range words {
			if strings.HasPrefix(r.out.Text(), w) {
				return r.out.Text()
			}
		}
	}
	t.Fatalf("a child ended before it said %q", words)
	return ""
}

func (r *racer) say(t testing.TB) {
	t.Helper()
	if _, err := io.WriteString(r.to, "\n"); err != nil {
		t.Fatal(err)
	}
}

// TestDeviceRace: processes open one controller at the same moment. One has it; each of the
// others gets ErrLocked with the number of that process.
func TestDeviceRace(t *testing.T) {
	address := nth(t, classNVMe, 1)
	if err := openHW(t, address).Close(); err != nil { // binds it
		t.Fatal(err)
	}
	var all []*racer
	for range racers {
		all = append(all, startRacer(t, address))
	}
	wins := make([]int, racers)
	for round := range raceRounds {
		for _, r := range all {
			r.say(t)
		}
		owner, lost := 0, []string{}
		for i, r := range all {
			if said := r.hear(t, "won", "locked:", "failed:"); said == "won" {
				wins[i]++
				if owner != 0 {
					t.Fatalf("round %d: two owners", round)
				}
				owner = r.cmd.Process.Pid
			} else {
				lost = append(lost, said)
			}
		}
		for _, said := range lost {
			if !strings.HasPrefix(said, "locked:") || owner == 0 || !strings.Contains(said, fmt.Sprintf("process %d ", owner)) {
				t.Errorf("round %d: %d has it, another was told %q", round, owner, said)
			}
		}
		if round == 0 {
			t.Log(lost)
		}
		for _, r := range all {
			r.say(t)
			r.hear(t, "done")
		}
	}
	t.Logf("won: %v", wins)
}
