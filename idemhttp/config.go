package idemhttp

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/idem-go/idem"
)

// Defaults of [Config].
const (
	DefaultHeader         = "Idempotency-Key"
	DefaultReplayedHeader = "Idempotent-Replayed"
	DefaultMaxRequest     = 1 << 20
	DefaultMaxResponse    = 1 << 20
	DefaultMaxWait        = 10 * time.Second
	DefaultStoreTimeout   = 10 * time.Second
)

// headerRoom is what the encoded status, header and trailer of a response may take
// beside its body.
const headerRoom = 64 << 10

// InFlight says what a repeat gets while the first request is being worked on.
type InFlight uint8

const (
	// Conflict refuses it with 409 at once. It is the default.
	Conflict InFlight = iota
	// Wait lets it wait up to [Config.MaxWait] for the answer, then refuses it with 409.
	Wait
	// Accepted answers 202 at once.
	Accepted
)

// Settlement says what becomes of an answer.
type Settlement uint8

const (
	// Store stores the answer. A transaction is committed.
	Store Settlement = iota
	// StoreRolledBack stores the answer and rolls back what the handler wrote in the
	// transaction. Under a lease it is the same as Store.
	StoreRolledBack
	// Release stores nothing: nothing happened in this attempt, and a repeat runs the
	// handler. A transaction is rolled back.
	Release
)

// DefaultSettle is the default of [Config.Settle]: 429 and 503 are released, every
// other status is stored, and from 400 up a transaction is rolled back.
func DefaultSettle(status int) Settlement {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return Release
	case status >= 400:
		return StoreRolledBack
	}
	return Store
}

// Config is the contract of a guarded endpoint. A zero field means its default.
// It is copied by [New] and [NewTx]: settings of another route are a changed copy.
// Functions are called concurrently.
type Config struct {
	// Operation is the contract of the operation; Name is required. The fields
	// Codec, Classify, MaxResult and Wait belong to this package and stay zero.
	Operation idem.Config

	// Scope says whose key a request carries: the authenticated principal, by a
	// name that is 1 to 255 bytes of printable ASCII. Required; [Global] is the
	// spelled-out opt-out. An error is answered with 401 before any claim, and its
	// text is not sent.
	Scope func(*http.Request) (string, error)

	// Header is the name of the key's field. Default [DefaultHeader].
	Header string
	// Optional lets a request without a key pass unguarded. Default: 400.
	Optional bool
	// Methods are guarded; others pass untouched. Default POST and PATCH. HEAD, GET,
	// OPTIONS and TRACE cannot be guarded.
	Methods []string
	// Skip lets a request pass untouched although its method is guarded, for instance
	// one that asks for a stream. Default: none.
	Skip func(*http.Request) bool

	// Fingerprint says what a request means: [JSON], [Fields], [None], or a function
	// of one's own, which gets the whole body. An error is answered with 400. Default:
	// method, path, query, content type and body, each after its length.
	Fingerprint Fingerprint
	// MaxRequest bounds the body of a request in bytes; a larger one is answered
	// with 413. Default 1 MiB.
	MaxRequest int

	// InFlight says what a repeat gets while the first is being worked on; Prefer:
	// wait=N and Prefer: respond-async (RFC 7240) change it for one request. Default
	// [Conflict].
	InFlight InFlight
	// MaxWait bounds how long a repeat waits, whoever asks for it. It should be
	// shorter than the server's WriteTimeout. Default 10 s.
	MaxWait time.Duration
	// Reference returns a URL that tells how far the operation is, for answers of
	// 202. Default: none.
	Reference func(*http.Request, idem.Key) string

	// Settle says what becomes of an answer, by its status. Default [DefaultSettle].
	Settle func(status int) Settlement
	// MaxResponse bounds the body of an answer that is stored, in bytes. A larger one
	// is sent whole, once; repeats are refused with response_not_stored. Default
	// 1 MiB, at most 32 MiB.
	MaxResponse int
	// DropHeaders names fields of the handler that are not stored, beside those that
	// never are.
	DropHeaders []string
	// ReplayedHeader is the name of the field, with the value true, that marks
	// replays. Default [DefaultReplayedHeader].
	ReplayedHeader string

	// CancelOnDisconnect ends the handler's context when its client hangs up.
	// Nothing written, or a status of 500 and up, is then no outcome: see
	// [idem.Config.Policy]. Default: the handler goes on, and its answer is stored.
	CancelOnDisconnect bool
	// FailOpen runs the handler unguarded, and logs that, while the store cannot be
	// reached; not when it has answered, however badly. [NewTx] refuses it: a handler without its transaction would write
	// outside it. Default: 503.
	FailOpen bool
	// StoreTimeout bounds how long the store may take to grant or refuse a key,
	// beside the time that is waited on purpose. Default 10 s.
	StoreTimeout time.Duration

	// WriteProblem sends a refusal. Default [WriteProblem].
	WriteProblem func(http.ResponseWriter, *http.Request, Problem)
	// Logger is told, at the level Error, what an operator should know: the store is
	// down and the request ran unguarded, an answer could not be stored. Keys and
	// bodies are never logged. Default [slog.Default].
	Logger *slog.Logger
}

// Global is a [Config.Scope] for keys that belong to nobody in particular: every
// client that guesses a key gets its answer.
func Global(*http.Request) (string, error) { return idem.Global, nil }

// withDefaults returns a copy of c that is complete, or an [*idem.ConfigError].
func (c Config) withDefaults() (Config, error) {
	bad := func(field, format string, args ...any) (Config, error) {
		return c, &idem.ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)}
	}
	const ours = "is set by package idemhttp"
	switch o := c.Operation; {
	case c.Scope == nil:
		return bad("Config.Scope", "is nil")
	case o.Codec != nil:
		return bad("Config.Operation.Codec", ours)
	case o.Classify != nil:
		return bad("Config.Operation.Classify", ours)
	case o.MaxResult != 0:
		return bad("Config.Operation.MaxResult", ours+"; see MaxResponse")
	case o.Wait != 0:
		return bad("Config.Operation.Wait", ours+"; see MaxWait")
	case c.InFlight > Accepted:
		return bad("Config.InFlight", "is %d, want Conflict, Wait or Accepted", c.InFlight)
	}
	for _, f := range []struct {
		field, fallback string
		name            *string
	}{
		{"Config.Header", DefaultHeader, &c.Header},
		{"Config.ReplayedHeader", DefaultReplayedHeader, &c.ReplayedHeader},
	} {
		if *f.name == "" {
			*f.name = f.fallback
		}
		if !token(*f.name) {
			return bad(f.field, "is %q, want the name of a field", *f.name)
		}
		*f.name = textproto.CanonicalMIMEHeaderKey(*f.name)
	}
	for _, f := range []struct {
		field                 string
		value                 *int
		fallback, least, most int
	}{
		{"Config.MaxRequest", &c.MaxRequest, DefaultMaxRequest, 1, 1 << 30},
		{"Config.MaxResponse", &c.MaxResponse, DefaultMaxResponse, 1, 32 << 20},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
		if *f.value < f.least || *f.value > f.most {
			return bad(f.field, "is %d, want %d to %d", *f.value, f.least, f.most)
		}
	}
	for _, f := range []struct {
		field    string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Config.MaxWait", &c.MaxWait, DefaultMaxWait},
		{"Config.StoreTimeout", &c.StoreTimeout, DefaultStoreTimeout},
	} {
		if *f.value == 0 {
			*f.value = f.fallback
		}
		if *f.value < time.Millisecond || *f.value > time.Hour {
			return bad(f.field, "is %v, want %v to %v", *f.value, time.Millisecond, time.Hour)
		}
	}
	if len(c.Methods) == 0 {
		c.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	c.Methods = slices.Clone(c.Methods)
	for _, m := range c.Methods {
		switch {
		case !token(m):
			return bad("Config.Methods", "names %q, which is no method", m)
		case m != strings.ToUpper(m): // methods are case-sensitive: POST would be unguarded
			return bad("Config.Methods", "names %s, want %s", m, strings.ToUpper(m))
		case slices.Contains([]string{"", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect}, m):
			return bad("Config.Methods", "names %s, which is safe or has no answer to store", m)
		}
	}
	c.DropHeaders = slices.Clone(c.DropHeaders)
	for i, name := range c.DropHeaders {
		if !token(name) {
			return bad("Config.DropHeaders", "names %q, which is no field", name)
		}
		c.DropHeaders[i] = textproto.CanonicalMIMEHeaderKey(name)
	}
	if c.Settle == nil {
		c.Settle = DefaultSettle
	}
	if c.WriteProblem == nil {
		c.WriteProblem = WriteProblem
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Operation.Codec = codec{c.MaxResponse}
	c.Operation.MaxResult = c.MaxResponse + headerRoom
	return c, nil
}

// token reports whether s is a token of RFC 9110, section 5.6.2.
func token(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(others, r)
	})
}
