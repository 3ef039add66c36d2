package ctl

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ugds-store/ugds/gpu/xfer"
	"github.com/ugds-store/ugds/internal/base"
)

// gpuSettings reads what was set of transfers: by flags, the environment, and
// store.toml, the first of these that has a setting.
func (e *Env) gpuSettings(t *Target) (xfer.Settings, error) {
	var layers []xfer.Layer
	flags := map[string]string{}
	for _, text := range t.GPUSet {
		name, value, ok := strings.Cut(text, "=")
		if !ok || !slices.Contains(xfer.SettingNames(), name) {
			return xfer.Settings{}, usage("--gpu-set", "%q is not NAME=VALUE with one of %s", text, strings.Join(xfer.SettingNames(), ", "))
		}
		flags[name] = value
	}
	layers = append(layers, fixedLayer("--gpu-set", flags))
	if e.Getenv != nil {
		layers = append(layers, xfer.Environment(e.Getenv))
	}
	if t.Dir != "" {
		c, err := readConfig(t.Dir)
		if err != nil && (!errors.Is(err, base.ErrNotFound) || len(t.Devices) == 0 || t.Meta == "") {
			return xfer.Settings{}, err // with both named, the directory need not have one
		}
		if err == nil {
			set, err := c.gpuLayer(filepath.Join(t.Dir, ConfigName))
			if err != nil {
				return xfer.Settings{}, err
			}
			layers = append(layers, fixedLayer(ConfigName, set))
		}
	}
	return xfer.LoadSettings(layers...)
}

// heedsGPUSet refuses settings of transfers to and from a GPU when there is none.
func (t *Target) heedsGPUSet(verb string) error {
	if len(t.GPUSet) > 0 && t.GPU == "" {
		return usage(verb, "--gpu-set %s does not go without --gpu", t.GPUSet[0])
	}
	return nil
}

func fixedLayer(name string, set map[string]string) xfer.Layer {
	return xfer.Layer{Name: name, Get: func(setting string) (string, bool) { v, ok := set[setting]; return v, ok }}
}

// gpuLayer is the table [gpu] of store.toml, whose values are texts, numbers and
// truths. Unknown names are refused.
func (c *config) gpuLayer(file string) (map[string]string, error) {
	out := map[string]string{}
	for name, v := range c.GPU {
		if !slices.Contains(xfer.SettingNames(), name) {
			return nil, base.Errorf("read", file, base.ErrInvalid, "gpu.%s: unknown; there are %s", name, strings.Join(xfer.SettingNames(), ", "))
		}
		out[name] = fmt.Sprint(v)
	}
	return out, nil
}
