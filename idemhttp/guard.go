package idemhttp

import (
	"context"
	"net/http"
	"slices"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
)

// Guard is a guarded operation. It is declared once, with [New] or [NewTx], and is
// safe for concurrent use.
type Guard struct {
	cfg Config
	op  *idem.Operation[Response]
	do  doer

	waits []idem.CallOption // of a repeat that waits for as long as it may
}

// doer runs the handler of an attempt as the operation that its key names, under a
// lease or in a transaction.
type doer func(ctx context.Context, a *attempt, fp idem.Fingerprint, opts []idem.CallOption) (idem.Result[Response], error)

// New declares an endpoint whose handler runs under a lease, outside any transaction
// of the store: for effects elsewhere. [Run] tells the handler about its attempt.
// It does no I/O, and returns an [*idem.ConfigError].
func New(drv driver.Driver, cfg Config) (*Guard, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	op, err := idem.New[Response](drv, cfg.Operation)
	if err != nil {
		return nil, err
	}
	do := func(ctx context.Context, a *attempt, fp idem.Fingerprint, opts []idem.CallOption) (idem.Result[Response], error) {
		return op.Do(ctx, a.call.key, fp, func(ctx context.Context, run *idem.Run) (Response, error) {
			a.call.run = run
			return a.exec(ctx)
		}, opts...)
	}
	return newGuard(cfg, op, do), nil
}

// NewTx declares an endpoint whose handler runs inside one transaction of the store,
// which [Tx] hands out: the key, the business writes and the answer commit together,
// before the answer is sent. See [New].
func NewTx[T any](drv driver.TxDriver[T], cfg Config) (*Guard, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.FailOpen {
		return nil, &idem.ConfigError{Field: "Config.FailOpen", Reason: "is set, but a handler cannot run without its transaction"}
	}
	op, err := idem.NewTx[Response](drv, cfg.Operation)
	if err != nil {
		return nil, err
	}
	do := func(ctx context.Context, a *attempt, fp idem.Fingerprint, opts []idem.CallOption) (idem.Result[Response], error) {
		return op.DoTx(ctx, a.call.key, fp, func(ctx context.Context, tx T) (Response, error) {
			a.call.tx = tx
			return a.exec(ctx)
		}, opts...)
	}
	return newGuard(cfg, op.Operation, do), nil
}

func newGuard(cfg Config, op *idem.Operation[Response], do doer) *Guard {
	return &Guard{cfg: cfg, op: op, do: do, waits: []idem.CallOption{idem.WaitAtMost(cfg.MaxWait)}}
}

// Operation returns the operation behind the guard: for Lookup, Resolve, Forget,
// List and Maintain.
func (g *Guard) Operation() *idem.Operation[Response] { return g.op }

// Handler guards next. It is a middleware: for routers that take a func(http.Handler)
// http.Handler, give them the method value g.Handler.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, next) })
}

func (g *Guard) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !slices.Contains(g.cfg.Methods, r.Method) || g.cfg.Skip != nil && g.cfg.Skip(r) {
		next.ServeHTTP(w, r)
		return
	}
	id, present, reason := keyIn(r.Header, g.cfg.Header)
	switch {
	case reason != "":
		p := problem(CodeKeyInvalid)
		p.Detail = g.cfg.Header + ": " + reason + ". " + p.Detail
		g.refuse(w, r, p)
		return
	case !present && g.cfg.Optional:
		next.ServeHTTP(w, r)
		return
	case !present:
		p := problem(CodeKeyMissing)
		p.Detail = "Send one in the field " + g.cfg.Header + "."
		g.refuse(w, r, p)
		return
	}
	key, p := g.key(r, id)
	if p != nil {
		g.refuse(w, r, *p)
		return
	}
	body, p := readBody(w, r, g.cfg.MaxRequest)
	if p != nil {
		g.refuse(w, r, *p)
		return
	}
	fp, err := g.fingerprint(r, body)
	if err != nil {
		p := problem(CodeNoFingerprint)
		p.Detail, p.Err = err.Error(), err
		g.refuse(w, r, p)
		return
	}
	a := attempt{g: g, w: w, r: r, next: next, body: body, call: call{key: key}}
	a.run(fp)
}

// key puts the scope to a key.
func (g *Guard) key(r *http.Request, id string) (idem.Key, *Problem) {
	scope, err := g.cfg.Scope(r)
	if err != nil {
		p := problem(CodeScopeRefused)
		p.Err = err
		return idem.Key{}, &p
	}
	key := idem.Key{Scope: scope, ID: id}
	if err := key.Validate(); err != nil {
		g.log(r, "the scope cannot be used", err)
		p := problem(CodeScopeInvalid)
		p.Err = err
		return idem.Key{}, &p
	}
	return key, nil
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, p Problem) {
	g.cfg.WriteProblem(w, r, p)
}

func (g *Guard) log(r *http.Request, msg string, err error) {
	g.cfg.Logger.ErrorContext(r.Context(), "idemhttp: "+msg, "operation", g.cfg.Operation.Name, "error", err)
}
