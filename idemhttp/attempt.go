package idemhttp

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// Causes that end the context of a call before its handler has started, and outcomes
// of the handler.
var (
	errHungUp   = errors.New("the request ended")
	errTooSlow  = errors.New("the store did not answer in time")
	errReleased = errors.New("the answer gives the key up")
	errLate     = errors.New("the claim came too late for the handler to start")
)

// attempt is one guarded request.
type attempt struct {
	call call
	g    *Guard
	w    http.ResponseWriter
	r    *http.Request
	next http.Handler
	body []byte

	claim  claimContext
	ran    bool
	rec    *recorder
	answer Response // the handler's, when it ran to its end

	// What a handler gets, beside the attempt to be allocated with it.
	writer recorder
	reader bodyReader
	ctx    callContext
}

// run claims the key, runs the handler or not, and answers.
func (a *attempt) run(fp idem.Fingerprint) {
	prefer := preferencesIn(a.r.Header)
	wait := time.Duration(0)
	if a.g.cfg.InFlight == Wait {
		wait = a.g.cfg.MaxWait
	}
	if prefer.hasWait {
		wait = min(prefer.wait, a.g.cfg.MaxWait)
	}
	ctx := &a.claim
	ctx.reset(a.r.Context(), time.Now().Add(wait+a.g.cfg.StoreTimeout), !a.g.cfg.CancelOnDisconnect)
	defer ctx.stop()
	var opts []idem.CallOption
	switch {
	case prefer.hasWait:
		opts = []idem.CallOption{idem.WaitAtMost(wait)}
	case wait > 0:
		opts = a.g.waits
	}
	res, err := a.g.do(ctx, a, fp, opts)
	ctx.start() // if it has not
	a.reply(ctx, res, err, prefer, wait)
}

// exec runs the handler: it is the fn of the operation.
func (a *attempt) exec(ctx context.Context) (Response, error) {
	if !a.claim.start() {
		return Response{}, a.notRun(errLate)
	}
	a.ran = true
	a.writer.reset(a.w)
	a.rec = &a.writer
	a.ctx = callContext{ctx, &a.call}
	r := a.r.WithContext(&a.ctx)
	a.replay(r)
	a.next.ServeHTTP(a.rec, r)
	a.keepFiles(r)
	return a.settle(ctx)
}

// notRun marks an error after which this attempt has not been applied. An earlier
// one, which died, may have been: then the key must not become absent.
func (a *attempt) notRun(err error) error {
	if a.call.run != nil && a.call.run.Attempt > 1 {
		return err
	}
	return idem.NotApplied(err)
}

// replay gives a request its body again.
func (a *attempt) replay(r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		a.reader.Reset(a.body)
		r.Body = &a.reader
	}
}

// keepFiles hands the files of a form to the request of the server, which removes
// them.
func (a *attempt) keepFiles(r *http.Request) {
	if a.r.MultipartForm == nil {
		a.r.MultipartForm = r.MultipartForm
	}
}

// settle turns the answer into the outcome of the operation.
func (a *attempt) settle(ctx context.Context) (Response, error) {
	cfg := &a.g.cfg
	// The context ended: the lease was lost, or the client hung up and that counts. A
	// handler that gave up for that reason has no answer.
	if ctx.Err() != nil && (!a.rec.wrote || a.rec.status >= 500) {
		return Response{}, context.Cause(ctx)
	}
	if a.rec.refused {
		a.rec = new(recorder) // the handler may have kept the other
		a.rec.reset(a.w)
		cfg.WriteProblem(a.rec, a.r, problem(CodeStreaming))
	}
	var err error
	if a.answer, err = a.rec.finish(); err != nil {
		return Response{}, err
	}
	a.unmark()
	switch cfg.Settle(a.answer.Status) {
	case Release:
		return Response{}, a.notRun(errReleased)
	case StoreRolledBack:
		if a.call.run == nil { // in a transaction
			return Response{}, a.final()
		}
	}
	return a.g.stored(a.answer, a.rec.outer), nil
}

// unmark takes away the mark of a replay, which only a replay bears.
func (a *attempt) unmark() {
	for name := range a.answer.Header {
		if strings.EqualFold(name, a.g.cfg.ReplayedHeader) {
			delete(a.answer.Header, name)
		}
	}
}

// final is the outcome of a handler whose writes are rolled back, and whose answer
// is stored.
func (a *attempt) final() error {
	e := &idem.FinalError{Message: http.StatusText(a.answer.Status), Code: CodeNotStored}
	b, err := a.g.cfg.Operation.Codec.Marshal(a.g.stored(a.answer, a.rec.outer))
	if err != nil {
		a.g.log(a.r, "the answer is not stored", err)
		return e
	}
	e.Code, e.Details = codeAnswer, b
	return e
}

// codeAnswer marks a final error that is an encoded answer.
const codeAnswer = "idemhttp.response"
