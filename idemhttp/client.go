package idemhttp

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
)

// NewKey returns a new random key: a version 4 UUID in its usual form, 36 bytes.
//
// A key names what the client means to do once. Make it when the intent arises
// and keep it with the intent, in the database if that may outlive the process, so
// that every retry sends the same one. The stable name of such an intent (a cart, an
// invoice) is a good key too. A hash of the body is not: two equal orders are two
// orders. An email address is not: it is personal, and the next order has it too.
func NewKey() string {
	var b [16]byte
	rand.Read(b[:]) // never fails since Go 1.24
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[:8], b[:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:], b[10:])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

type clientKey struct{}

// WithKey returns a context that makes a [Transport] send this key with the POST
// and PATCH requests that carry it: one context, one operation.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, clientKey{}, key)
}

// Transport gives each POST and PATCH that has no key one of its own. A request
// that has the field already is sent as it is. It is safe for concurrent use.
//
// A retrying client must send one key with every attempt:
//
//   - Retries inside, in Base, all send the key that Transport gave the request.
//     net/http's own Transport is one of these: with a key it sends a request again
//     when a kept-alive connection turns out to be dead.
//   - Retries outside call RoundTrip once for each attempt, and no RoundTripper can
//     tell a second attempt from a second request. Give the request its key before
//     the first attempt: by [WithKey] on its context, or by the header itself.
//
// Redirects of 307 and 308 keep the key.
type Transport struct {
	// Base sends the requests. Default [http.DefaultTransport].
	Base http.RoundTripper
	// Header is the name of the field. Default [DefaultHeader].
	Header string
	// Quoted sends the key as an RFC 8941 string, which servers that follow the
	// draft to the letter ask for. Default: bare, except for keys with quotes, commas
	// or spaces at an end.
	Quoted bool
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	base, name := t.Base, t.Header
	if base == nil {
		base = http.DefaultTransport
	}
	if name == "" {
		name = DefaultHeader
	}
	if req.Method != http.MethodPost && req.Method != http.MethodPatch {
		return base.RoundTrip(req)
	}
	if _, present, _ := keyIn(req.Header, name); present {
		return base.RoundTrip(req)
	}
	value := redirectedKey(req, name)
	if value == "" {
		key, ok := req.Context().Value(clientKey{}).(string)
		if !ok {
			key = NewKey()
		}
		value = key
		if t.Quoted || !bare(key) {
			value = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		}
	}
	keyed := req.Clone(req.Context()) // a RoundTripper must not change the request
	if keyed.Header == nil {
		keyed.Header = make(http.Header)
	}
	keyed.Header.Set(name, value)
	return base.RoundTrip(keyed)
}

// bare reports whether a field can hold a key as it is.
func bare(key string) bool {
	return !strings.ContainsAny(key, `",`) && strings.TrimSpace(key) == key
}

// redirectedKey returns the value that was sent with the request of which req is
// the redirection.
func redirectedKey(req *http.Request, name string) string {
	if req.Response == nil || req.Response.Request == nil {
		return ""
	}
	switch req.Response.StatusCode {
	case http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return req.Response.Request.Header.Get(name)
	}
	return ""
}
