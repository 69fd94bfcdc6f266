package idemhttp_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/idemhttp"
)

func TestResponse_RoundTrip(t *testing.T) {
	for _, r := range []idemhttp.Response{
		{Status: 200, Body: []byte{}},
		{Status: 999, Body: []byte("x")},
		{Status: 201, Body: []byte("\x00\xff"), Header: http.Header{
			"Content-Type": {"text/plain"}, "Link": {"a", "", "b"}, "x-odd": {"\xff"}, "Date": nil,
		}, Trailer: http.Header{"X-Sum": {"1"}}},
	} {
		b, err := r.AppendBinary([]byte("before"))
		if err != nil || string(b[:6]) != "before" {
			t.Fatalf("AppendBinary: %q, %v", b, err)
		}
		b = b[6:]
		var got idemhttp.Response
		if err := got.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Error(diff)
		}
		clear(b) // the response has its own memory
		if diff := cmp.Diff(r, got); diff != "" {
			t.Error("shares memory with its encoding:", diff)
		}
	}
}

// The form is compact, and does not change under one version.
func TestResponse_Form(t *testing.T) {
	r := idemhttp.Response{Status: 201, Header: http.Header{"B": {"2", "3"}, "A": {"1"}}, Body: []byte("body"), Trailer: http.Header{"T": {""}}}
	b, err := r.MarshalBinary()
	want := []byte("\x01\xc9\x01\x12" + "\x02\x01A\x01\x011\x01B\x02\x012\x013" + "\x01\x01T\x01\x00" + "body")
	if err != nil || !slices.Equal(b, want) {
		t.Errorf("encoded as %q, %v, want %q", b, err, want)
	}
}

func TestResponse_Refused(t *testing.T) {
	for _, status := range []int{-1, 0, 100, 199, 1000} {
		if _, err := (idemhttp.Response{Status: status}).MarshalBinary(); err == nil {
			t.Errorf("status %d was encoded", status)
		}
	}
	for name, b := range map[string]string{
		"nothing":         "",
		"version 0":       "\x00\xc8\x01\x02\x00\x00",
		"no status":       "\x01",
		"status 100":      "\x01\x64\x02\x00\x00",
		"status 1000":     "\x01\xe8\x07\x02\x00\x00",
		"long fields":     "\x01\xc8\x01\x7f\x00\x00",
		"short fields":    "\x01\xc8\x01\x01\x00\x00",
		"more fields":     "\x01\xc8\x01\x03\x00\x00\x00",
		"a name twice":    "\x01\xc8\x01\x08\x02\x01A\x00\x01A\x00\x00",
		"a count too big": "\x01\xc8\x01\x05\x01\x01A\x7f\x00",
	} {
		var r idemhttp.Response
		if err := r.UnmarshalBinary([]byte(b)); err == nil || errors.Is(err, idem.ErrNewerVersion) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	var r idemhttp.Response
	if err := r.UnmarshalBinary([]byte("\x02anything")); !errors.Is(err, idem.ErrNewerVersion) {
		t.Errorf("a newer version: error is %v", err)
	}
}
