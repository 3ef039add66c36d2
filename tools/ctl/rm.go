package ctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/ugds-store/ugds/internal/base"
	"github.com/ugds-store/ugds/store"
)

// RmOptions of Rm.
type RmOptions struct {
	Keys    []string
	Relaxed bool // do not wait until the removal is durable
}

type rmDoc struct {
	header
	nameDoc
	Removed int        `json:"removed"`
	Failed  []rmFailed `json:"failed"`
}

type rmFailed struct {
	keyDoc
	errorDoc
}

// Rm removes keys. One that cannot be removed does not keep the others.
func Rm(ctx context.Context, e *Env, t *Target, o RmOptions) error {
	return e.fail("rm", rm(ctx, e, t, o))
}

func rm(ctx context.Context, e *Env, t *Target, o RmOptions) error {
	var keys [][]byte
	for _, k := range o.Keys {
		key, err := t.parseKey("rm", k)
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > store.MaxBatchKeys {
		return usage("rm", "%d keys: 1 to %d are possible", len(keys), store.MaxBatchKeys)
	}
	var errs []error
	err := e.with(ctx, "rm", t, false, func(s *session) error {
		n, err := s.Namespace(ctx, t.namespace(), store.NamespaceOptions{})
		switch {
		case errors.Is(err, store.ErrNotFound) && t.namespace() == DefaultNamespace:
			for _, k := range keys {
				errs = append(errs, noKey("rm", t, k))
			}
			return nil
		case err != nil:
			return err
		}
		do := store.DeleteOptions{}
		if o.Relaxed {
			do.Durability = store.Relaxed
		}
		errs = n.DeleteBatch(ctx, keys, do)
		return nil
	})
	if err != nil {
		return err
	}
	return e.reportRm(t, keys, errs)
}

func (e *Env) reportRm(t *Target, keys [][]byte, errs []error) error {
	doc := rmDoc{header: head("rm", nil), nameDoc: docName(t.namespace()), Failed: []rmFailed{}}
	worst := 0
	for i, err := range errs {
		if err == nil {
			doc.Removed++
			continue
		}
		class, code := classify(err)
		doc.Failed = append(doc.Failed, rmFailed{docKey(keys[i]), errorDoc{class, err.Error()}})
		if worst == 0 || worst == ExitNotFound { // not found is the mildest failure
			worst = code
		}
		if !e.JSON {
			if _, werr := fmt.Fprintln(e.Stderr, "ugdsctl:", Plain(err.Error())); werr != nil {
				return base.Wrap("write", "standard error", werr)
			}
		}
	}
	if e.JSON {
		if err := e.emit(doc); err != nil {
			return err
		}
	}
	if worst != 0 {
		return quietly(worst)
	}
	return nil
}
