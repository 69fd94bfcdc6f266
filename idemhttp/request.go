package idemhttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/fingerprint"
)

// Fingerprint says what a request means; see [Config.Fingerprint]. Body is the whole
// body, and must not be kept or changed. An error says that the request cannot be
// compared with others; its text is sent to the client.
type Fingerprint func(r *http.Request, body []byte) (idem.Fingerprint, error)

// None is the [Fingerprint] of every request: whatever comes with a key is a repeat.
func None(*http.Request, []byte) (idem.Fingerprint, error) { return fingerprint.None(), nil }

// JSON is the [Fingerprint] of method, path, query and body, where the body is
// compared as the JSON value that it is (RFC 8785): for clients that encode a retry
// anew. It returns an error that matches [fingerprint.ErrInvalidJSON] for a body that
// is no JSON, or that parsers disagree on. An empty body is allowed.
func JSON(r *http.Request, body []byte) (idem.Fingerprint, error) {
	text, shift, err := withBody(r, body)
	if err != nil {
		return idem.Fingerprint{}, err
	}
	fp, err := fingerprint.JSON(text)
	return fp, inBody(err, shift)
}

// Fields returns a [Fingerprint] of method, path, query and the fields of a JSON body
// that the JSON Pointers (RFC 6901) name. See [fingerprint.Fields], and [JSON] for
// the errors. It panics when there are no pointers or one is malformed.
func Fields(pointers ...string) Fingerprint {
	if _, err := fingerprint.Fields([]byte("null"), pointers...); err != nil {
		panic("idemhttp: " + err.Error())
	}
	all := []string{"/0", "/1", "/2"}
	for _, p := range pointers {
		all = append(all, "/3"+p)
	}
	return func(r *http.Request, body []byte) (idem.Fingerprint, error) {
		text, shift, err := withBody(r, body)
		if err != nil {
			return idem.Fingerprint{}, err
		}
		fp, err := fingerprint.Fields(text, all...)
		return fp, inBody(err, shift)
	}
}

// withBody returns the JSON array of method, path, query and the body, and how much
// further on in it the bytes of the body are.
func withBody(r *http.Request, body []byte) (text []byte, shift int, err error) {
	start := len(body)
	body = bytes.TrimLeft(body, jsonSpace)
	start -= len(body)
	body = bytes.TrimRight(body, jsonSpace)
	// A body like 1,2 would be two elements of the array.
	if len(body) > 0 && !json.Valid(body) {
		return nil, 0, &fingerprint.JSONError{Reason: "a body that is not one JSON value"}
	}
	text, err = json.Marshal([3]string{r.Method, r.URL.EscapedPath(), escapeBytes(r.URL.RawQuery)})
	if err != nil || len(body) == 0 {
		return text, 0, err
	}
	text[len(text)-1] = ','
	shift = len(text) - start
	return append(append(text, body...), ']'), shift, nil
}

const jsonSpace = " \t\r\n"

// inBody makes an offset in the array one in the body.
func inBody(err error, shift int) error {
	if in := new(fingerprint.JSONError); errors.As(err, &in) && in.Offset >= shift {
		shifted := *in
		shifted.Offset -= shift
		return &shifted
	}
	return err
}

// escapeBytes percent-encodes bytes of a query that are no UTF-8, of which JSON would
// make one and the same character.
func escapeBytes(query string) string {
	if utf8.ValidString(query) {
		return query
	}
	var b strings.Builder
	for i, c := range query {
		if _, size := utf8.DecodeRuneInString(query[i:]); c == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, "%%%02X", query[i])
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// rawRecipe names how rawSum sums.
const rawRecipe = "http.v1"

// rawSum sums method, path, query, content type and body, each after its length.
func rawSum(r *http.Request, path string, body []byte) [sha256.Size]byte {
	var some [1024]byte
	b := some[:0]
	for _, s := range [...]string{r.Method, path, r.URL.RawQuery, strings.Join(r.Header["Content-Type"], "\n")} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	if len(b)+len(body) <= len(some) { // most requests: nothing is allocated
		return sha256.Sum256(append(b, body...))
	}
	h := sha256.New()
	h.Write(bytes.Clone(b))
	h.Write(body)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// digestLen is how many hexadecimal digits of a fingerprint are shown.
const digestLen = 16

// fingerprint returns what a request means, with a summary for a mismatch: the
// method, the beginning of the fingerprint's sum, and the path, which may be cut.
func (g *Guard) fingerprint(r *http.Request, body []byte) (idem.Fingerprint, error) {
	path := r.URL.EscapedPath()
	var fp idem.Fingerprint
	var sum []byte
	if g.cfg.Fingerprint == nil {
		raw := rawSum(r, path, body)
		sum = raw[:]
		fp = idem.NewFingerprint(rawRecipe, sum)
	} else {
		var err error
		if fp, err = g.cfg.Fingerprint(r, body); err != nil {
			return fp, err
		}
		if sum = fp.Sum(); len(sum) != sha256.Size { // perhaps no hash, and not to be shown
			hash := sha256.Sum256(sum)
			sum = hash[:]
		}
	}
	if fp.Summary() == "" {
		var digest [digestLen]byte
		hex.Encode(digest[:], sum[:digestLen/2])
		fp = fp.WithSummary(r.Method + " " + string(digest[:]) + " " + path)
	}
	return fp, nil
}

// StoredRequest describes the request that a key was first used for.
type StoredRequest struct {
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Fingerprint is the beginning of what is compared, in hexadecimal; of its
	// SHA-256, where it is none itself.
	Fingerprint string    `json:"fingerprint,omitempty"`
	Summary     string    `json:"summary,omitempty"` // of a fingerprint with one of its own
	Operation   string    `json:"operation,omitempty"`
	FirstSeen   time.Time `json:"first_seen,omitzero"`
}

// storedRequest reads the summary that Guard.fingerprint wrote.
func storedRequest(e *idem.MismatchError) *StoredRequest {
	s := &StoredRequest{Operation: e.Operation, FirstSeen: e.FirstSeen}
	method, rest, _ := strings.Cut(e.Summary, " ")
	digest, path, ok := strings.Cut(rest, " ")
	if _, err := hex.DecodeString(digest); err == nil && ok && len(digest) == digestLen && token(method) {
		s.Method, s.Fingerprint, s.Path = method, digest, path
	} else {
		s.Summary = e.Summary
	}
	return s
}

// firstRead is how much is read for a body before its length is believed.
const firstRead = 64 << 10

// readBody reads the whole body of a request, up to most bytes. The error is a
// [Problem].
func readBody(w http.ResponseWriter, r *http.Request, most int) ([]byte, *Problem) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > int64(most) {
		p := problem(CodeRequestTooLarge)
		if r.ProtoMajor < 2 { // there, it would end the connection for everybody's requests
			w.Header().Set("Connection", "close") // rather than read what nobody wants
		}
		return nil, &p
	}
	in := r.Body
	if r.ContentLength < 0 {
		// It tells the server to close the connection when there is more.
		in = http.MaxBytesReader(w, in, int64(most))
	}
	size := 512
	if r.ContentLength >= 0 {
		size = int(r.ContentLength) + 1 // room to read that there is no more
	}
	b := make([]byte, 0, min(size, firstRead))
	for {
		n, err := in.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF && len(b) <= most {
			return b, nil
		}
		if err != nil || len(b) > most {
			return nil, unreadable(err, len(b) > most)
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// unreadable returns the refusal of a request whose body cannot be read.
func unreadable(err error, large bool) *Problem {
	code := CodeRequestIncomplete
	if limit := new(http.MaxBytesError); large || errors.As(err, &limit) {
		code = CodeRequestTooLarge
	}
	p := problem(code)
	p.Err = err
	return &p
}

// bodyReader gives the handler the bytes that were read.
type bodyReader struct{ bytes.Reader }

// Close implements [io.Closer].
func (*bodyReader) Close() error { return nil }

// retryAfter returns a Retry-After value: whole seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}

// call is what a guarded handler can learn from its context.
type call struct {
	key idem.Key
	run *idem.Run
	tx  any
}

type callKey struct{}

// callContext is context.WithValue for a call, without an allocation of its own.
type callContext struct {
	context.Context
	call *call
}

// Value implements [context.Context].
func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c.call
	}
	return c.Context.Value(key)
}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// Tx returns the transaction that a handler guarded by [NewTx] runs in; its type is
// the driver's: pgx.Tx, *sql.Tx, *bbolt.Tx. It panics when there is none, or one of
// another type: to fall back to a pool in silence would be to write outside the
// transaction. The handler must not end it.
func Tx[T any](ctx context.Context) T {
	c := callOf(ctx)
	if c == nil || c.tx == nil {
		panic("idemhttp: Tx outside a handler guarded by NewTx")
	}
	tx, ok := c.tx.(T)
	if !ok {
		panic("idemhttp: Tx of a type that is not the driver's")
	}
	return tx
}

// Run returns what a handler guarded by [New] can know of its claim: the attempt,
// the fence, and keys for the next system. Ok is false elsewhere, also in a request
// that passed unguarded.
func Run(ctx context.Context) (run *idem.Run, ok bool) {
	if c := callOf(ctx); c != nil && c.run != nil {
		return c.run, true
	}
	return nil, false
}

// Key returns the key under which a guarded handler runs.
func Key(ctx context.Context) (key idem.Key, ok bool) {
	if c := callOf(ctx); c != nil {
		return c.key, true
	}
	return idem.Key{}, false
}
