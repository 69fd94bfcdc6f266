package conformancetest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/idem-go/idem/driver"
)

// comesBack checks that a result is replayed exactly, by Claim and by Get.
func comesBack(ctx context.Context, e *env, result []byte) error {
	want := bytes.Clone(result)
	p, got, err := e.completed(ctx, result)
	if err != nil {
		return err
	}
	if !sameResult(got.Result, want) {
		return fmt.Errorf("get returned %s, want %s", showBytes(got.Result), showBytes(want))
	}
	r, err := refuse(ctx, e.d, e.claim(p.Key, t0))
	if err != nil {
		return err
	}
	if !sameResult(r.Result, want) {
		return fmt.Errorf("claim returned %s, want %s", showBytes(r.Result), showBytes(want))
	}
	return nil
}

var resultRules = []rule{
	// Field case P22.
	{
		id:      "result/none",
		promise: "a completion without a result is replayed as one without a result",
		check:   func(ctx context.Context, e *env) error { return comesBack(ctx, e, nil) },
	},
	// Field cases P22 and C03.
	{
		id:      "result/empty",
		promise: "an empty result is replayed as an empty result, not as none",
		check:   func(ctx context.Context, e *env) error { return comesBack(ctx, e, []byte{}) },
	},
	// Field cases P20 and C04.
	{
		id:      "result/every-byte",
		promise: "a result may hold every byte, and text that looks like something else",
		check: func(ctx context.Context, e *env) error {
			every := make([]byte, 256)
			for i := range every {
				every[i] = byte(i)
			}
			for _, result := range [][]byte{
				every, {0}, {0, 0}, {0xff}, []byte("null"), []byte("NULL"), []byte("0"), []byte("1e3"), []byte("00012"),
				[]byte(`\x00ff`), []byte("line\r\n"), []byte(" padded "), []byte("9007199254740993"),
			} {
				if err := comesBack(ctx, e, result); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		id:      "result/large",
		promise: "a result of a megabyte comes back byte for byte",
		check: func(ctx context.Context, e *env) error {
			result := make([]byte, 1<<20)
			chacha := rand.NewChaCha8([32]byte{1})
			_, _ = chacha.Read(result)
			return comesBack(ctx, e, result)
		},
	},
	// Field case B04.
	{
		id:      "result/copied",
		promise: "the driver keeps no slice it was given, and the caller owns those it gets",
		check: func(ctx context.Context, e *env) error {
			p := e.claim(e.key(), t0)
			want := bytes.Clone(p.Fingerprint)
			first, err := grant(ctx, e.d, p)
			if err != nil {
				return err
			}
			clear(p.Fingerprint)
			clear(first.Fingerprint)
			result := []byte("outcome")
			if err := e.d.Complete(ctx, complete(first, t0, result)); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			clear(result)
			for range 2 {
				replay, err := refuse(ctx, e.d, e.claim(p.Key, t0))
				if err != nil {
					return err
				}
				got, err := e.get(ctx, p.Key, t0)
				if err != nil {
					return err
				}
				for _, r := range []driver.Record{replay, got} {
					if string(r.Result) != "outcome" || !bytes.Equal(r.Fingerprint, want) {
						return fmt.Errorf("the record holds %q and fingerprint %q after the caller changed its slices", r.Result, r.Fingerprint)
					}
					clear(r.Result)
					clear(r.Fingerprint)
				}
			}
			return nil
		},
	},
	{
		id:      "result/kept-apart",
		promise: "results of many keys do not mix",
		check: func(ctx context.Context, e *env) error {
			stored := make(map[driver.Key]string)
			for i := range 50 {
				result := fmt.Sprintf("outcome %d", i)
				p, _, err := e.completed(ctx, []byte(result))
				if err != nil {
					return err
				}
				stored[p.Key] = result
			}
			for k, want := range stored {
				r, err := e.get(ctx, k, t0)
				if err != nil {
					return err
				}
				if string(r.Result) != want {
					return fmt.Errorf("%v holds %q, want %q", k, r.Result, want)
				}
			}
			return nil
		},
	},
	{
		id:      "result/note",
		promise: "the note of an operator is stored: with a completion, and from a release into the next claim",
		check: func(ctx context.Context, e *env) error {
			const note = "resolved by hand: müßig 'quoted' \\ 100%"
			p, r, err := e.held(ctx)
			if err != nil {
				return err
			}
			c := complete(r, t0, nil)
			c.Note = note
			if err := e.d.Complete(ctx, c); err != nil {
				return fmt.Errorf("complete: %w", err)
			}
			if r, err = e.get(ctx, p.Key, t0); err != nil {
				return err
			}
			if r.Note != note {
				return fmt.Errorf("the complete record has the note %q, want %q", r.Note, note)
			}
			if p, r, err = e.held(ctx); err != nil {
				return err
			}
			if err := e.d.Release(ctx, driver.ReleaseParams{HolderParams: holder(p.Key, r, t0), Note: note}); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			// The note outlives the lease: it is kept as long as the claim would have been.
			if r, err = grant(ctx, e.d, e.claim(p.Key, t0.Add(2*lease))); err != nil {
				return err
			}
			if r.Note != note {
				return fmt.Errorf("the claim after the release has the note %q, want %q", r.Note, note)
			}
			return nil
		},
	},
}
