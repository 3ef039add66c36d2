package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// onceValue is a flag that takes one value: a second one would silently win over the
// first.
type onceValue struct {
	pflag.Value
	given bool
}

func (o *onceValue) Set(text string) error {
	if o.given {
		return errors.New("it is given twice")
	}
	o.given = true
	return o.Value.Set(text)
}

// once has the flags of cmd and of the verbs below it refused when they are given twice,
// but for lists.
func once(cmd *cobra.Command) {
	wrap := func(f *pflag.Flag) {
		switch f.Value.(type) {
		case pflag.SliceValue, *onceValue:
		default:
			f.Value = &onceValue{Value: f.Value}
		}
	}
	cmd.PersistentFlags().VisitAll(wrap)
	cmd.Flags().VisitAll(wrap)
	for _, c := range cmd.Commands() {
		once(c)
	}
}
