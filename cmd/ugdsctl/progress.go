package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/ugds-store/ugds/tools/ctl"
)

// progress shows bars on standard error when a person watches.
func progress(e *ctl.Env) func(title string, total int64) ctl.Bar {
	st, err := os.Stderr.Stat()
	if e.JSON || err != nil || st.Mode()&os.ModeCharDevice == 0 || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return func(title string, total int64) ctl.Bar {
		p := mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(48))
		name, speed := decor.Name(title+" "), mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1000(0), "% .1f"))
		if total <= 0 {
			return &bar{p, p.AddSpinner(0, mpb.PrependDecorators(name, decor.CurrentKibiByte("% .1f")), speed)}
		}
		return &bar{p, p.AddBar(total, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(name, decor.CountersKibiByte("% .1f of % .1f")), speed)}
	}
}

type bar struct {
	p *mpb.Progress
	b *mpb.Bar
}

func (b *bar) Add(n int64) { b.b.IncrInt64(n) }

// Done takes the bar away, whether it is full or not.
func (b *bar) Done() {
	b.b.Abort(true)
	b.p.Wait()
}
