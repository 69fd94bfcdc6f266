package conformancetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/idem-go/idem/driver"
)

// asksOther turns a claim into one of another operation and another request.
func asksOther(p driver.ClaimParams) driver.ClaimParams {
	p.Operation, p.Fingerprint, p.Summary = "conformance.other", []byte("fingerprint two"), "request two"
	return p
}

// tellsFirst checks that a refused claim shows what the key was claimed for.
func tellsFirst(r driver.Record, first driver.ClaimParams) error {
	if r.Operation != first.Operation || !bytes.Equal(r.Fingerprint, first.Fingerprint) || r.Summary != first.Summary {
		return fmt.Errorf("got operation %q, fingerprint %q, summary %q, want %q, %q, %q",
			r.Operation, r.Fingerprint, r.Summary, first.Operation, first.Fingerprint, first.Summary)
	}
	return nil
}

// notTakenOver checks that next, made when the lease of first has ended, is refused
// and leaves the key unknown under first.
func notTakenOver(ctx context.Context, e *env, first driver.ClaimParams, next driver.ClaimParams) error {
	before, err := grant(ctx, e.d, first)
	if err != nil {
		return err
	}
	next.Now = first.Now.Add(first.Lease)
	r, err := refuse(ctx, e.d, next)
	if err != nil {
		return err
	}
	if err := tellsFirst(r, first); err != nil {
		return err
	}
	after, err := e.get(ctx, first.Key, next.Now)
	if err != nil {
		return err
	}
	return unchanged(after, before)
}

var mismatchRules = []rule{
	{
		id:      "mismatch/in-flight",
		promise: "a claim with another request learns, while the first is in flight, what the first was",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.held(ctx)
			if err != nil {
				return err
			}
			r, err := refuse(ctx, e.d, asksOther(e.claim(p.Key, t0)))
			if err != nil {
				return err
			}
			return tellsFirst(r, p)
		},
	},
	{
		id:      "mismatch/complete",
		promise: "a claim with another request learns, once the first is complete, what the first was",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			r, err := refuse(ctx, e.d, asksOther(e.claim(p.Key, t0)))
			if err != nil {
				return err
			}
			return tellsFirst(r, p)
		},
	},
	{
		id:      "mismatch/expired",
		promise: "a tombstone still says what its key was used for",
		check: func(ctx context.Context, e *env) error {
			p, _, err := e.completed(ctx, []byte("outcome"))
			if err != nil {
				return err
			}
			r, err := refuse(ctx, e.d, asksOther(e.claim(p.Key, t0.Add(keep))))
			if err != nil {
				return err
			}
			return tellsFirst(r, p)
		},
	},
	{
		id:      "mismatch/unknown-fingerprint",
		promise: "an unknown outcome is not taken over by a claim with another fingerprint",
		check: func(ctx context.Context, e *env) error {
			first := e.claim(e.key(), t0)
			next := e.claim(first.Key, t0)
			next.Fingerprint = []byte("fingerprint two")
			return notTakenOver(ctx, e, first, next)
		},
	},
	{
		id:      "mismatch/unknown-operation",
		promise: "an unknown outcome is not taken over by another operation",
		check: func(ctx context.Context, e *env) error {
			first := e.claim(e.key(), t0)
			next := e.claim(first.Key, t0)
			next.Operation = "conformance.Run" // operations differ by case too
			return notTakenOver(ctx, e, first, next)
		},
	},
	{
		id:      "mismatch/resolve",
		promise: "Resolve does not let another request take over",
		check: func(ctx context.Context, e *env) error {
			first := e.claim(e.key(), t0)
			first.Hold = true
			next := asksOther(e.claim(first.Key, t0))
			next.Resolve = true
			return notTakenOver(ctx, e, first, next)
		},
	},
	{
		id:      "mismatch/fingerprint-exact",
		promise: "fingerprints are stored and compared byte by byte, of any bytes and up to the longest",
		check: func(ctx context.Context, e *env) error {
			long := make([]byte, driver.MaxFingerprint)
			for i := range long {
				long[i] = byte(2 * i)
			}
			for _, c := range []struct{ first, next []byte }{
				{[]byte("a"), []byte("A")},
				{[]byte("a"), []byte("a ")},
				{[]byte("a"), []byte("a\x00")},
				{[]byte("\x00"), []byte("\x00\x00")},
				{[]byte{0xff, 0xfe}, []byte{0xff, 0xfd}},
				{[]byte("1"), []byte("1.0")},
				{long, long[:len(long)-1]},
			} {
				first := e.claim(e.key(), t0)
				first.Fingerprint = c.first
				next := e.claim(first.Key, t0)
				next.Fingerprint = c.next
				if err := notTakenOver(ctx, e, first, next); err != nil {
					return fmt.Errorf("%q, then %q: %w", c.first, c.next, err)
				}
			}
			return nil
		},
	},
	{
		id:      "mismatch/text-exact",
		promise: "the operation and the summary come back as they were, up to the longest",
		check: func(ctx context.Context, e *env) error {
			for _, c := range []struct{ operation, summary string }{
				{"op", ""},
				{strings.Repeat("o", driver.MaxOperation), strings.Repeat("s", driver.MaxSummary)},
				{`it's {"an"} operation: 100%_\n; --`, "müßig 日本語 \U0001F511 'quoted' \\ \t\n end "},
			} {
				p := e.claim(e.key(), t0)
				p.Operation, p.Summary = c.operation, c.summary
				if _, err := grant(ctx, e.d, p); err != nil {
					return err
				}
				r, err := e.get(ctx, p.Key, t0.Add(time.Second))
				if err != nil {
					return err
				}
				if err := tellsFirst(r, p); err != nil {
					return err
				}
			}
			return nil
		},
	},
}
