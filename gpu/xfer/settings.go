package xfer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ugds-store/ugds/internal/base"
)

// Compat says whether bytes may go between device and GPU without a stop in host
// memory. Names and meaning are KvikIO's.
type Compat uint8

const (
	// CompatAuto takes the direct way where there is one, and stages otherwise.
	CompatAuto Compat = iota
	// CompatOn stages always: the direct way is not even looked for.
	CompatOn
	// CompatOff is direct or an error, but for what is below the threshold.
	CompatOff
)

// String names the mode as KvikIO does.
func (c Compat) String() string { return [...]string{"AUTO", "ON", "OFF"}[c] }

// ParseCompat reads a mode in any case: AUTO; ON, TRUE, YES, 1; OFF, FALSE, NO, 0.
// ErrInvalid for anything else.
func ParseCompat(s string) (Compat, error) {
	switch strings.ToLower(s) {
	case "auto":
		return CompatAuto, nil
	case "on", "true", "yes", "1":
		return CompatOn, nil
	case "off", "false", "no", "0":
		return CompatOff, nil
	}
	return 0, base.Errorf("set", "compat_mode", base.ErrInvalid, "%q; it is AUTO, ON or OFF", s)
}

// Names of the settings, KvikIO's where it has them. Environment is how a variable
// is called that sets one.
const (
	SettingCompat    = "compat_mode"
	SettingStrict    = "strict"
	SettingThreshold = "gds_threshold"
	SettingTask      = "task_size"
	SettingThreads   = "num_threads"
	SettingBounce    = "bounce_buffer_size"
)

// SourceDefault is the source of a setting that nobody set.
const SourceDefault = "default"

// Settings are what people set of a mover, each with where it came from.
type Settings struct {
	Compat    Compat
	Strict    bool
	Threshold int64 // bytes; smaller transfers are staged
	Task      int64 // bytes of the pieces that a transfer is cut into; 0 cuts by its size
	Threads   int   // pieces of one transfer under way
	Bounce    int64 // bytes of a bounce buffer, the most that a piece moves at once

	from map[string]string
}

// Setting is one of them, as text.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Layer is a source of settings: flags, the environment, a file.
type Layer struct {
	// Name is the source, for people: "flag", "environment", "store.toml".
	Name string
	// Get gives the text of a setting, if the layer has one.
	Get func(setting string) (text string, ok bool)
	// Check refuses a layer that contradicts itself. May be nil.
	Check func() error
}

// The names of the number of threads in the environment.
const (
	envThreads  = "UGDS_NUM_THREADS"
	envNThreads = "UGDS_NTHREADS"
)

// Environment is the layer of the environment: UGDS_COMPAT_MODE and so on, with
// UGDS_NTHREADS as a second name of UGDS_NUM_THREADS, as KvikIO has it. Both with
// different values are refused, base.ErrInvalid: nobody knows which is meant.
func Environment(get func(variable string) (string, bool)) Layer {
	read := func(setting string) (string, bool) {
		v, ok := get("UGDS_" + strings.ToUpper(setting))
		if !ok && setting == SettingThreads {
			v, ok = get(envNThreads)
		}
		return v, ok
	}
	return Layer{"environment", read, func() error {
		a, one := get(envThreads)
		b, two := get(envNThreads)
		if one && two && a != b {
			return base.WithHint(base.Errorf("set", SettingThreads, base.ErrInvalid, "%s is %q and %s is %q: they are one setting",
				envThreads, a, envNThreads, b), "unset one of them")
		}
		return nil
	}}
}

// settingRule is how a setting is read and shown.
type settingRule struct {
	name string
	set  func(s *Settings, text string) error
	get  func(s *Settings) string
}

func settingRules() []settingRule {
	bytes := func(name string, low, high int64, of func(s *Settings) *int64) settingRule {
		return settingRule{name, func(s *Settings, text string) error {
			n, err := base.ParseBytes(text)
			if err == nil && (n < low || n > high) {
				err = base.Errorf("set", name, base.ErrInvalid, "%d; it must be from %d to %d", n, low, high)
			}
			*of(s) = n
			return err
		}, func(s *Settings) string { return base.FormatBytes(*of(s)) }}
	}
	task := bytes(SettingTask, 4096, MaxTask, func(s *Settings) *int64 { return &s.Task })
	task.get = func(s *Settings) string {
		if s.Task == 0 {
			return "by the size of the transfer"
		}
		return base.FormatBytes(s.Task)
	}
	return []settingRule{
		{SettingCompat, func(s *Settings, text string) (err error) { s.Compat, err = ParseCompat(text); return err },
			func(s *Settings) string { return s.Compat.String() }},
		{SettingStrict, func(s *Settings, text string) (err error) { s.Strict, err = parseSwitch(text); return err },
			func(s *Settings) string { return strconv.FormatBool(s.Strict) }},
		bytes(SettingThreshold, 0, MaxTask, func(s *Settings) *int64 { return &s.Threshold }),
		task,
		{SettingThreads, func(s *Settings, text string) error {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > MaxLanes {
				return base.Errorf("set", SettingThreads, base.ErrInvalid, "%q; it must be from 1 to %d", text, MaxLanes)
			}
			s.Threads = n
			return nil
		}, func(s *Settings) string { return strconv.Itoa(s.Threads) }},
		bytes(SettingBounce, MinChunk, MaxChunk, func(s *Settings) *int64 { return &s.Bounce }),
	}
}

func parseSwitch(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "on", "true", "yes", "1":
		return true, nil
	case "off", "false", "no", "0":
		return false, nil
	}
	return false, base.Errorf("set", SettingStrict, base.ErrInvalid, "%q; it is on or off", text)
}

// MaxTask is the most that Task and Threshold may be, in bytes.
const MaxTask = 1 << 40

// DefaultThreshold is KvikIO's.
const DefaultThreshold = 16 * base.KiB

// LoadSettings takes each setting from the first layer that has it. The error
// names the layer and the setting.
func LoadSettings(layers ...Layer) (Settings, error) {
	o := Options{}.withDefaults()
	s := Settings{Threshold: DefaultThreshold, Threads: o.Threads, Bounce: o.ChunkBytes, from: map[string]string{}}
	for _, l := range layers {
		if l.Check == nil {
			continue
		}
		if err := l.Check(); err != nil {
			return s, fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	for _, rule := range settingRules() {
		for _, l := range layers {
			text, ok := l.Get(rule.name)
			if !ok {
				continue
			}
			if err := rule.set(&s, text); err != nil {
				return s, fmt.Errorf("%s, %s: %w", l.Name, rule.name, err)
			}
			s.from[rule.name] = l.Name
			break
		}
	}
	if s.Bounce%4096 != 0 {
		return s, base.Errorf("set", SettingBounce, base.ErrInvalid, "%d is no multiple of 4096", s.Bounce)
	}
	return s, nil
}

// List gives every setting as text with its source, in a fixed order.
func (s Settings) List() []Setting {
	var out []Setting
	for _, rule := range settingRules() {
		from := s.from[rule.name]
		if from == "" {
			from = SourceDefault
		}
		out = append(out, Setting{rule.name, rule.get(&s), from})
	}
	return out
}

// Options are those of a mover with these settings.
func (s Settings) Options() Options {
	return Options{Compat: s.Compat, Strict: s.Strict, Threshold: s.Threshold, TaskBytes: s.Task, Threads: s.Threads,
		ChunkBytes: s.Bounce, Lanes: max(s.Threads, Options{}.withDefaults().Lanes)}
}

// SettingNames lists the names of the settings.
func SettingNames() []string {
	var out []string
	for _, rule := range settingRules() {
		out = append(out, rule.name)
	}
	return out
}
