package idemhttp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem"
)

// A claim that came too late is given up without having run: as not applied, unless
// an earlier attempt may have been.
func TestAttempt_Late(t *testing.T) {
	for number, run := range map[int]*idem.Run{0: nil, 1: {Attempt: 1}, 2: {Attempt: 2}} {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for name, ctx := range map[string]*claimContext{
			"too slow": {limit: time.Now(), request: t.Context()},
			"hung up":  {limit: time.Now().Add(time.Hour), request: gone},
		} {
			a := &attempt{call: call{run: run}}
			a.claim.reset(ctx.request, ctx.limit, true)
			_, err := a.exec(t.Context())
			if !errors.Is(err, errLate) || (err == errLate) != (number == 2) || a.ran {
				t.Errorf("%s, attempt %d: error is %v", name, number, err)
			}
		}
	}
}

// What a call learns of its context is the same whether it asks for Done at once, as
// a store that waits does, or never.
func TestClaimContext(t *testing.T) {
	type valueKey struct{}
	errClient := errors.New("the client's cause")
	for _, tc := range []struct {
		name     string
		detached bool
		life     []string
		mayStart bool
		err      error // after life
		cause    error
	}{
		{"runs", true, []string{"start"}, true, nil, nil},
		{"the request ends before", true, []string{"hang up", "start"}, false, context.Canceled, errHungUp},
		{"the request ends before, attached", false, []string{"hang up", "start"}, false, context.Canceled, errClient},
		{"the request ends after", true, []string{"start", "hang up"}, true, nil, nil},
		{"the request ends after, attached", false, []string{"start", "hang up"}, true, context.Canceled, errClient},
		{"the store is slow", true, []string{"a minute", "start"}, false, context.Canceled, errTooSlow},
		{"the store is slow, attached", false, []string{"a minute", "start"}, false, context.Canceled, errTooSlow},
		{"the handler is slow", true, []string{"start", "a minute"}, true, nil, nil},
		{"the call has ended", true, []string{"start", "stop"}, true, context.Canceled, context.Canceled},
		{"the call has ended, then the request", true, []string{"start", "stop", "hang up"}, true, context.Canceled, context.Canceled},
		{"the call has ended, then the request, attached", false, []string{"start", "stop", "hang up"}, true, context.Canceled, context.Canceled},
		{"the request ends, then the call, attached", false, []string{"start", "hang up", "stop"}, true, context.Canceled, errClient},
		{"the call panicked late", true, []string{"a minute", "stop"}, false, context.Canceled, errTooSlow},
		{"the call panicked", true, []string{"stop", "a minute", "hang up"}, false, context.Canceled, context.Canceled},
	} {
		for _, early := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				request, cancel := context.WithCancelCause(context.WithValue(t.Context(), valueKey{}, "v"))
				defer cancel(nil)
				c := new(claimContext)
				c.reset(request, time.Now().Add(time.Minute), tc.detached)
				defer c.stop()
				if early {
					c.Done()
				}
				mayStart := false
				for _, step := range tc.life {
					switch step {
					case "start":
						mayStart = c.start()
					case "stop":
						c.stop()
					case "hang up":
						cancel(errClient)
					case "a minute":
						time.Sleep(time.Minute)
					}
					synctest.Wait()
				}
				child, done := context.WithCancel(c)
				defer done()
				if mayStart != tc.mayStart || c.Err() != tc.err || context.Cause(c) != tc.cause || context.Cause(child) != tc.cause || c.Value(valueKey{}) != "v" {
					t.Errorf("%s, asked for early %v: may start %v, error %v, cause %v, child's %v, value %v",
						tc.name, early, mayStart, c.Err(), context.Cause(c), context.Cause(child), c.Value(valueKey{}))
				}
				select {
				case <-c.Done():
					if tc.err == nil {
						t.Errorf("%s: done", tc.name)
					}
				default:
					if tc.err != nil {
						t.Errorf("%s: not done", tc.name)
					}
				}
			})
		}
	}
}
