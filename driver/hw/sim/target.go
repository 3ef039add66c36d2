package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/driver/nvme"
	"github.com/ugds-store/ugds/internal/base"
)

const targetScheme = "sim:"

// Setting is one of those that a target of a model may have.
type Setting struct {
	Name, Values string // what it may be, in words
	Default      string
	Meaning      string
	set          func(c *Config, value string) error
}

// settings are all, in the order in which people are told of them.
var settings = []Setting{
	{"path", "a file", "none", "of its blocks; without one they are in memory, and gone with it",
		func(c *Config, value string) error {
			if c.Path = value; value == "" {
				return fmt.Errorf("no name of a file")
			}
			return nil
		}},
	{"size", "bytes, with a unit", "that of the file; 1GiB in memory", "of its one namespace",
		func(c *Config, value string) error { return nil }}, // ParseTarget has it
	{"lba", "4096 or 512", "4096", "bytes of a block", choose(map[string]func(c *Config){
		"512": func(c *Config) { c.Namespaces[0].BlockShift = 9 }, "4096": func(c *Config) { c.Namespaces[0].BlockShift = 12 }})},
	number("mdts", 0, 20, "5", "largest command, as a power of two of 4 KiB; 0 is no limit",
		func(c *Config, v uint64) { c.Identify.MDTS = uint8(v) }),
	number("mqes", 2, 65536, "1024", "entries of a queue", func(c *Config, v uint64) { c.CAP.MQES = uint16(v - 1) }),
	number("queues", 1, nvme.MaxQueues, "32", "I/O queues that it has", func(c *Config, v uint64) { c.MaxQueues = uint32(v) }),
	number("vectors", 0, MaxVectors, "16", "interrupt vectors; a queue without one is polled", func(c *Config, v uint64) { c.Vectors = int(v) }),
	number("noiob", 0, 65535, "0", "blocks between boundaries that commands should not cross; 0 is none",
		func(c *Config, v uint64) { c.Namespaces[0].NOIOB = uint16(v) }),
	number("vwc", 0, 1, "1", "1 with a volatile write cache", func(c *Config, v uint64) { c.Identify.VWC = uint8(v) * 7 }),
	number("sgl", 0, 1, "0", "1 if it understands SGLs", func(c *Config, v uint64) { c.Identify.SGLS.Set(uint32(v)) }),
	number("dstrd", 0, nvme.MaxDSTRD, "0", "doorbell stride, as a power of two of 4 bytes", func(c *Config, v uint64) { c.CAP.DSTRD = uint8(v) }),
	number("nsid", 1, 1<<31, "1", "identifier of the namespace", func(c *Config, v uint64) { c.Namespaces[0].ID = uint32(v) }),
	{"service", "zero or fixed", "zero", "how long commands take: no time, or that of a fast SSD", choose(map[string]func(c *Config){
		"zero": func(c *Config) { c.Service = ServiceZero }, "fixed": func(c *Config) { c.Service = ServiceFixed }})},
	{"clock", "real or virtual", "real", "its time; a virtual one goes on when there is nothing to do", choose(map[string]func(c *Config){
		"virtual": func(c *Config) { c.Real = false }, "real": func(c *Config) { c.Real = true }})},
	number("seed", 0, math.MaxUint64, "0", "of its random choices", func(c *Config, v uint64) { c.Seed = v }),
}

// Settings lists what a target may say. The caller must not change it.
func Settings() []Setting { return settings }

// number is a setting that is a number.
func number(name string, lo, hi uint64, std, meaning string, set func(c *Config, v uint64)) Setting {
	values := fmt.Sprintf("%d to %d", lo, hi)
	if hi == math.MaxUint64 {
		values = "a number"
	}
	return Setting{name, values, std, meaning, func(c *Config, value string) error {
		v, err := strconv.ParseUint(value, 10, 64)
		if err != nil || v < lo || v > hi {
			return fmt.Errorf("not a number from %d to %d (%s)", lo, hi, meaning)
		}
		set(c, v)
		return nil
	}}
}

// choose is for a setting that is one of some words.
func choose(among map[string]func(c *Config)) func(c *Config, value string) error {
	return func(c *Config, value string) error {
		f, ok := among[value]
		if !ok {
			return fmt.Errorf("it can be %s", strings.Join(slices.Sorted(maps.Keys(among)), " or "))
		}
		f(c)
		return nil
	}
}

// ParseTarget reads "sim:size=1GiB,lba=4096,…"; Settings says what may stand there. A
// comma inside a value is written twice. ErrInvalid for anything else.
func ParseTarget(target string) (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return Config{}, base.Errorf("open", target, base.ErrInvalid, format, args...)
	}
	text, ok := strings.CutPrefix(target, targetScheme)
	if !ok {
		return bad("a model's target begins with %s", targetScheme)
	}
	values := map[string]string{}
	for _, part := range splitTarget(text) {
		key, value, ok := strings.Cut(part, "=")
		known := slices.ContainsFunc(settings, func(s Setting) bool { return s.Name == key })
		switch _, twice := values[key]; {
		case !known:
			_, err := bad("a model has no setting %q", key)
			return Config{}, base.WithHint(err, "it has %s", names())
		case !ok:
			return bad("%s has no value: write %s=VALUE", key, key)
		case twice:
			return bad("%s is set twice", key)
		}
		values[key] = value
	}
	size := int64(base.GiB)
	if v, ok := values["size"]; ok {
		n, err := base.ParseBytes(v)
		if err != nil {
			return bad("size=%s: %w", v, err)
		}
		size = n
	} else if values["path"] != "" {
		size = 0 // Open looks at the file
	}
	c := Default(size)
	c.Target, c.Real = target, true
	for _, s := range settings {
		if value, ok := values[s.Name]; ok {
			if err := s.set(&c, value); err != nil {
				return bad("%s=%s: %w", s.Name, value, err)
			}
		}
	}
	ns := &c.Namespaces[0]
	ns.Blocks = uint64(size) >> ns.BlockShift
	if _, ok := values["size"]; ok && ns.Blocks == 0 {
		return bad("size=%s: less than a block of %d bytes", values["size"], 1<<ns.BlockShift)
	}
	if err := c.check(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func names() string {
	var out []string
	for _, s := range settings {
		out = append(out, s.Name)
	}
	return strings.Join(out, ", ")
}

// splitTarget separates the settings of a target.
func splitTarget(text string) []string {
	if text == "" {
		return nil
	}
	const comma = "\x00" // no path holds it
	parts := strings.Split(strings.ReplaceAll(text, ",,", comma), ",")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], comma, ",")
	}
	return parts
}

// TargetWithPath is target with another path behind it, for a target that has one.
func TargetWithPath(target, path string) string {
	text, _ := strings.CutPrefix(target, targetScheme)
	parts := splitTarget(text)
	for i := range parts {
		if strings.HasPrefix(parts[i], "path=") {
			parts[i] = "path=" + path
		}
		parts[i] = strings.ReplaceAll(parts[i], ",", ",,")
	}
	return targetScheme + strings.Join(parts, ",")
}
