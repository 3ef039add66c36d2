package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/tools/ctl"
)

// lineEvery is how often a long operation tells how far it is where no bar can
// be seen.
const lineEvery = 10 * time.Second

// terminal tells whether f is a character device that shows something.
func terminal(f *os.File) bool {
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// progress shows bars on standard error when a person watches, and now and then
// a line when nobody does.
func progress(e *ctl.Env) func(title string, total int64, steps bool) ctl.Bar {
	switch {
	case e.JSON:
		return nil
	case !terminal(os.Stderr) || os.Getenv("TERM") == "dumb":
		return func(title string, total int64, _ bool) ctl.Bar {
			return &lines{w: e.Stderr, title: title, total: total, every: lineEvery, next: time.Now().Add(lineEvery)}
		}
	}
	return func(title string, total int64, steps bool) ctl.Bar {
		p := mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(48))
		name, speed := decor.Name(title+" "), mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1000(0), "% .1f"))
		if total <= 0 {
			return &bar{p, p.AddSpinner(0, mpb.PrependDecorators(name, decor.CurrentKibiByte("% .1f")), speed)}
		}
		if steps {
			return &bar{p, p.AddBar(total, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(name, decor.CountersNoUnit("%d of %d")))}
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

// lines is a bar for logs.
type lines struct {
	w           io.Writer
	title       string
	total, done int64
	every       time.Duration
	next        time.Time
	mu          sync.Mutex
}

func (l *lines) Add(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done += n
	now := time.Now()
	if now.Before(l.next) {
		return
	}
	l.next = now.Add(l.every)
	far := base.FormatBytes(l.done)
	if l.total > 0 {
		far = fmt.Sprintf("%d %%", int64(float64(l.done)/float64(l.total)*100))
	}
	fmt.Fprintf(l.w, "ugdsctl: %s: %s\n", l.title, far)
}

// Done says nothing: the answer of the verb does.
func (l *lines) Done() {}
