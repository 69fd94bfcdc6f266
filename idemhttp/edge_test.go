package idemhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/idemhttp"
)

// An answer that gives the key up speaks of its own attempt: that an earlier one
// died, and may have been applied, is not forgotten.
func TestEdge_ReleaseAfterALostAttempt(t *testing.T) {
	for _, code := range []int{429, 503} {
		var attempts []int
		e := serve(t, memory.New(), func(w http.ResponseWriter, r *http.Request) {
			run, _ := idemhttp.Run(r.Context())
			attempts = append(attempts, run.Attempt)
			switch len(attempts) {
			case 1:
				panic(http.ErrAbortHandler)
			case 2:
				w.WriteHeader(code)
			}
		})
		if a := <-e.async("k", "b"); a.err == nil {
			t.Fatalf("a panic was answered with %d", a.status)
		}
		e.post("k", "b").want(t, code, "", false)
		e.post("k", "b").want(t, 200, "", false)
		if got := fmt.Sprint(attempts); got != "[1 2 3]" {
			t.Errorf("%d: the handlers were attempts %s", code, got)
		}
	}
}

// FailOpen is for a store that cannot be reached, and not for one that has said
// that the key is held, or that it must not be used.
func TestEdge_FailOpenIsForAStoreThatIsDown(t *testing.T) {
	open := func(c *idemhttp.Config) { c.FailOpen = true }
	for _, said := range []error{driver.ErrNewerVersion, driver.ErrForeignRecord, driver.ErrUnsafeConfig, driver.ErrInvalidParams} {
		drv := newFaulty()
		claim := func(context.Context) error { return fmt.Errorf("store: %w", said) }
		drv.claim.Store(&claim)
		e := serve(t, drv, text(200, "ran"), open)
		e.post("k", "b").wantProblem(t, 503, idemhttp.CodeUnavailable)
		e.wantRuns(0)
	}

	// Another process holds the key, and the store goes down while this one waits.
	shared := memory.New()
	_, g, first := waitingOn(t, shared)
	e := serve(t, readless{shared}, text(200, "ran"), open, func(c *idemhttp.Config) { c.InFlight = idemhttp.Wait })
	e.post("k", "b").wantProblem(t, 503, idemhttp.CodeUnavailable)
	e.wantRuns(0)
	close(g.leave)
	receive(t, first, "the first")
}

// readless is a store that grants and refuses keys, and cannot be read.
type readless struct{ driver.Driver }

func (readless) Get(context.Context, driver.GetParams) (driver.Record, error) {
	return driver.Record{}, errDown
}

// waitingOn starts a request for the key k that stays in its handler.
func waitingOn(t *testing.T, drv driver.Driver) (*env, *gate, <-chan answer) {
	g := newGate()
	e := serve(t, drv, g.handler(text(200, "ran")))
	first := e.async("k", "b")
	receive(t, g.entered, "the handler")
	return e, g, first
}

// No list of methods may leave POST unguarded in silence.
func TestEdge_Methods(t *testing.T) {
	var bad *idem.ConfigError
	if _, err := idemhttp.New(memory.New(), config(func(c *idemhttp.Config) { c.Methods = []string{"post"} })); !errors.As(err, &bad) || bad.Field != "Config.Methods" {
		t.Errorf("post: error is %v", err)
	}
	e := serve(t, memory.New(), text(200, "ran"), func(c *idemhttp.Config) { c.Methods = []string{} })
	e.post("", "b").wantProblem(t, 400, idemhttp.CodeKeyMissing)
}
