package doctest_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ugds-store/ugds/driver"
	"github.com/ugds-store/ugds/driver/probe"
	"github.com/ugds-store/ugds/meta"
	"github.com/ugds-store/ugds/store"
	"github.com/ugds-store/ugds/tools/ctl"
)

// Example is the Go code of the README. The store that it opens is made first.
func Example() {
	dir, err := os.MkdirTemp("", "ugds-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := makeStore(dir); err != nil {
		log.Fatal(err)
	}
	value := []byte("the keys and values of some attention heads")

	// begin example
	ctx := context.Background()
	dev, err := probe.Open(ctx, filepath.Join(dir, "data.ugds"), probe.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close(ctx)
	s, err := store.Open(ctx, store.Options{
		Devices: []driver.Device{dev},
		Meta:    meta.Options{Dir: filepath.Join(dir, "meta")},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close(ctx)
	blocks, err := s.Namespace(ctx, "llama-70b", store.NamespaceOptions{Create: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := blocks.Put(ctx, []byte("block 1"), store.Bytes(value), store.PutOptions{}); err != nil {
		log.Fatal(err) // durable when it returns nil
	}
	lease, err := blocks.Lookup(ctx, [][]byte{[]byte("block 1"), []byte("block 2")}, store.LookupOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release()
	fmt.Println("leading blocks present:", lease.Len())
	got := make([]byte, lease.Size(0))
	if _, err := lease.Get(ctx, 0, store.Bytes(got), store.GetOptions{}); err != nil {
		log.Fatal(err) // what was found stays readable until the release
	}
	// end example

	fmt.Printf("%s\n", got)
	// Output:
	// leading blocks present: 1
	// the keys and values of some attention heads
}

func makeStore(dir string) error {
	env := &ctl.Env{Stdin: os.Stdin, Stderr: os.Stderr}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	env.Stdout = null
	return ctl.Format(context.Background(), env, &ctl.Target{Dir: dir}, ctl.FormatOptions{Size: 64 << 20, Yes: true})
}
