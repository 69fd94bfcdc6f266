package idemhttp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/idem-go/idem"
)

// Response is a stored answer: the result of the operations of this package.
type Response struct {
	Status int // 200 to 999
	// Header holds the fields that are stored, under their names as the handler
	// wrote them. A field without values is one that the handler took away or
	// suppressed, and is taken away from a replay too.
	Header  http.Header
	Body    []byte
	Trailer http.Header
}

// responseVersion is the first byte of an encoded response. A reader accepts its
// own version only.
const responseVersion = 1

var errResponse = errors.New("not an encoded response")

// AppendBinary appends an encoding of r to b: a version, the status, the length of
// what follows before the body, the header, the trailer, and the body as it is.
// Numbers are varints and names are sorted. It
// returns an error, and b as it was, when the status is not 200 to 999.
func (r Response) AppendBinary(b []byte) ([]byte, error) {
	if r.Status < 200 || r.Status > 999 {
		return b, fmt.Errorf("idemhttp: status %d is not one of an answer", r.Status)
	}
	var some [512]byte
	fields := appendFields(some[:0], r.Header)
	fields = appendFields(fields, r.Trailer)
	b = slices.Grow(b, 1+2+binary.MaxVarintLen32+len(fields)+len(r.Body))
	b = append(b, responseVersion)
	b = binary.AppendUvarint(b, uint64(r.Status))
	b = binary.AppendUvarint(b, uint64(len(fields)))
	b = append(b, fields...)
	return append(b, r.Body...), nil
}

// MarshalBinary is AppendBinary into a new slice.
func (r Response) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

func appendFields(b []byte, h http.Header) []byte {
	var some [16]string
	names := some[:0]
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = appendString(b, name)
		b = binary.AppendUvarint(b, uint64(len(h[name])))
		for _, v := range h[name] {
			b = appendString(b, v)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// UnmarshalBinary reads what AppendBinary wrote; r shares no memory with b. It
// returns an error that wraps [idem.ErrNewerVersion] when a newer version of this
// package wrote it.
func (r *Response) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) == 0 || b[0] == 0:
		return fmt.Errorf("idemhttp: %w", errResponse)
	case b[0] > responseVersion:
		return fmt.Errorf("idemhttp: %w: response version %d, this is %d", idem.ErrNewerVersion, b[0], responseVersion)
	}
	d := decoder{rest: b[1:], ok: true}
	status := d.number(999)
	size := d.number(len(d.rest))
	if !d.ok || status < 200 || size > len(d.rest) {
		return fmt.Errorf("idemhttp: %w", errResponse)
	}
	body := d.rest[size:]
	// One string holds all names and values.
	d.rest = d.rest[:size]
	d.text = string(d.rest)
	header, trailer := d.fields(), d.fields()
	if !d.ok || len(d.rest) > 0 {
		return fmt.Errorf("idemhttp: %w", errResponse)
	}
	*r = Response{Status: status, Header: header, Trailer: trailer, Body: slices.Clone(body)}
	return nil
}

// decoder reads fields off the front of rest; ok turns false at the first that is
// not there.
type decoder struct {
	rest []byte
	text string // ends as rest does
	ok   bool
}

func (d *decoder) number(most int) int {
	n, size := binary.Uvarint(d.rest)
	if !d.ok || size <= 0 || n > uint64(most) {
		d.ok = false
		return 0
	}
	d.rest = d.rest[size:]
	return int(n)
}

func (d *decoder) string() string {
	n := d.number(len(d.rest))
	if !d.ok || n > len(d.rest) {
		d.ok = false
		return ""
	}
	at := len(d.text) - len(d.rest)
	d.rest = d.rest[n:]
	return d.text[at : at+n]
}

// fields reads a header; no fields are a nil one. A name and a value take at least
// a byte, so that the counts are no greater than what is left.
func (d *decoder) fields() http.Header {
	n := d.number(len(d.rest))
	if !d.ok || n == 0 {
		return nil
	}
	h := make(http.Header, n)
	values := make([]string, 0, n) // most fields have one
	for range n {
		name := d.string()
		count := d.number(len(d.rest))
		if _, twice := h[name]; twice || !d.ok {
			d.ok = false
			return nil
		}
		first := len(values)
		for range count {
			values = append(values, d.string())
		}
		h[name] = values[first:len(values):len(values)]
		if count == 0 {
			h[name] = nil
		}
		if !d.ok {
			return nil
		}
	}
	return h
}

// Stored returns the answer that a repeat of a key would get, from what
// [idem.Operation.Lookup] has found. Ok is false when there is none.
func Stored(found idem.Found[Response]) (r Response, ok bool) {
	if found.State != idem.StateComplete {
		return Response{}, false
	}
	var final *idem.FinalError
	switch {
	case found.Err == nil:
		return found.Value, true
	case errors.As(found.Err, &final) && final.Code == codeAnswer:
		err := r.UnmarshalBinary(final.Details)
		return r, err == nil
	}
	return Response{}, false
}

// codec stores responses whose body is within the limit.
type codec struct{ maxBody int }

// Marshal implements [idem.Codec].
func (c codec) Marshal(v any) ([]byte, error) {
	r, ok := v.(Response)
	if !ok {
		return nil, fmt.Errorf("idemhttp: %T is no Response", v)
	}
	if len(r.Body) > c.maxBody {
		return nil, fmt.Errorf("idemhttp: the body has %d bytes, the limit is %d", len(r.Body), c.maxBody)
	}
	return r.MarshalBinary()
}

// Unmarshal implements [idem.Codec].
func (c codec) Unmarshal(data []byte, v any) error {
	r, ok := v.(*Response)
	if !ok {
		return fmt.Errorf("idemhttp: %T is no *Response", v)
	}
	return r.UnmarshalBinary(data)
}
