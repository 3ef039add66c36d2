package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// testPrograms are the packages whose tests need a GPU.
var testPrograms = []string{"cuda", "xfer"}

// buildAll builds this program and the test programs, which lie beside it then.
func buildAll(to string) error {
	cmds := [][]string{{"build", "-o", filepath.Join(to, "gpucheck"), "./tools/gpucheck"}}
	for _, name := range testPrograms {
		cmds = append(cmds, []string{"test", "-c", "-o", filepath.Join(to, name+".test"), "./gpu/" + name})
	}
	for _, args := range cmds {
		c := exec.Command("go", args...)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("go %v: %w", args, err)
		}
	}
	return nil
}

// tests runs the test programs beside this one.
func (r *rig) tests() error {
	if in := r.d.Info(); in.Backend != "cuda" {
		fmt.Println("not run: they are for NVIDIA's library, this is", in.Backend)
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range testPrograms {
		c := exec.Command(filepath.Join(filepath.Dir(self), name+".test"), "-gpu", "-test.run", "Real", "-test.timeout", "4m", "-test.v")
		c.Dir = *dir
		out, err := c.CombinedOutput()
		fmt.Printf("%s", out)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.test: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
