package idemhttp

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrStreaming is returned to a guarded handler that flushes, or takes over, its
// connection: the answer is held back until it is durable. It matches
// [http.ErrNotSupported]. The writer is no [http.Flusher] either. Leave endpoints that
// stream unguarded, or let them pass with [Config.Skip].
var ErrStreaming error = streamingError{}

type streamingError struct{}

func (streamingError) Error() string {
	return "idemhttp: a guarded handler cannot stream or take over its connection"
}

func (streamingError) Is(target error) bool { return target == http.ErrNotSupported }

// recorder is the ResponseWriter of a guarded handler: it keeps the answer, as
// net/http would send it. Like those of net/http, it is used by one goroutine.
type recorder struct {
	w      http.ResponseWriter
	outer  http.Header // what stood in w before the handler
	header http.Header // the handler's

	wrote    bool
	status   int
	sent     http.Header // as it was when the status was written
	body     []byte
	declared int64 // Content-Length, or -1
	refused  bool  // the handler wants to switch protocols
}

// reset prepares a recorder of the answer that goes to w.
func (rec *recorder) reset(w http.ResponseWriter) {
	outer := w.Header()
	*rec = recorder{w: w, declared: -1, header: make(http.Header, len(outer)+4)}
	if len(outer) > 0 {
		rec.outer = outer.Clone()
		maps.Copy(rec.header, outer.Clone())
	}
}

// Header implements [http.ResponseWriter].
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements [http.ResponseWriter]. A 1xx is passed on at once.
func (rec *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	switch {
	case rec.wrote:
	case status == http.StatusSwitchingProtocols:
		// Final for net/http, and the connection is the handler's from there.
		rec.wrote, rec.status, rec.refused = true, status, true
	case status < 200:
		rec.inform(status)
	default:
		rec.wrote, rec.status = true, status
		rec.sent = rec.header.Clone()
		if length := rec.sent.Get("Content-Length"); length != "" {
			if n, err := strconv.ParseInt(strings.TrimSpace(length), 10, 64); err == nil && n >= 0 {
				rec.declared = n
			}
		}
	}
}

// inform sends a 1xx with the fields set so far, and takes them off again.
func (rec *recorder) inform(status int) {
	h := rec.w.Header()
	replaceFields(h, rec.header)
	rec.w.WriteHeader(status)
	replaceFields(h, rec.outer)
}

func replaceFields(h, with http.Header) {
	clear(h)
	maps.Copy(h, with)
}

// Write implements [http.ResponseWriter].
func (rec *recorder) Write(b []byte) (int, error) {
	n, err := rec.room(len(b))
	rec.body = append(rec.body, b[:n]...)
	return n, err
}

// WriteString implements [io.StringWriter].
func (rec *recorder) WriteString(s string) (int, error) {
	n, err := rec.room(len(s))
	rec.body = append(rec.body, s[:n]...)
	return n, err
}

// room returns how many of n bytes may be written: all of them or none, so that an
// answer which is longer than declared is not cut to one that looks whole.
func (rec *recorder) room(n int) (int, error) {
	if !rec.wrote {
		rec.WriteHeader(http.StatusOK)
	}
	switch {
	case rec.refused:
		return 0, ErrStreaming
	case n > 0 && !bodyAllowed(rec.status):
		return 0, http.ErrBodyNotAllowed
	case rec.declared >= 0 && int64(len(rec.body)+n) > rec.declared:
		return 0, http.ErrContentLength
	}
	return n, nil
}

// bodyAllowed says which answers may have a body (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// FlushError is what [http.ResponseController] calls.
func (rec *recorder) FlushError() error { return ErrStreaming }

// Hijack implements [http.Hijacker], to say why not.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrStreaming }

// SetReadDeadline is what [http.ResponseController] calls.
func (rec *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(rec.w).SetReadDeadline(t)
}

// SetWriteDeadline is what [http.ResponseController] calls.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(rec.w).SetWriteDeadline(t)
}

// EnableFullDuplex is what [http.ResponseController] calls: the request was read
// whole, so that there is nothing to enable.
func (rec *recorder) EnableFullDuplex() error { return nil }

var errShort = errors.New("idemhttp: the handler wrote less than the Content-Length it declared")

// finish returns the whole answer, for the caller whose handler ran.
func (rec *recorder) finish() (Response, error) {
	if !rec.wrote {
		rec.WriteHeader(http.StatusOK)
	}
	r := Response{Status: rec.status, Header: rec.sent, Body: rec.body, Trailer: rec.trailer()}
	if rec.declared > int64(len(r.Body)) && bodyAllowed(r.Status) {
		return r, errShort
	}
	// net/http would look at the bytes in the same way; what it found is stored, so
	// that a replay does not depend on how a later version looks.
	_, typed := r.Header["Content-Type"]
	if len(r.Body) > 0 && !typed && r.Header.Get("Content-Encoding") == "" {
		r.Header["Content-Type"] = []string{http.DetectContentType(r.Body)}
	}
	return r, nil
}

// trailer returns the fields announced in Trailer, or marked with
// [http.TrailerPrefix], and takes them out of the header.
func (rec *recorder) trailer() http.Header {
	var trailer http.Header
	add := func(name string, values []string) {
		if len(values) > 0 && !connectionField(name) {
			if trailer == nil {
				trailer = make(http.Header)
			}
			trailer[name] = slices.Clone(values)
		}
	}
	for _, field := range rec.sent["Trailer"] {
		for name := range strings.SplitSeq(field, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if _, early := rec.sent[name]; !early {
				add(name, rec.header[name])
			}
		}
	}
	for key, values := range rec.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			add(http.CanonicalHeaderKey(name), values)
			delete(rec.sent, key)
		}
	}
	delete(rec.sent, "Trailer")
	return trailer
}
