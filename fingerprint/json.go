package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gowebpki/jcs"

	"github.com/idem-go/idem"
)

// ErrInvalidJSON is matched by [*JSONError].
var ErrInvalidJSON = errors.New("JSON without a fingerprint")

// JSONError says why a JSON text has no fingerprint. It matches [ErrInvalidJSON].
// Its message quotes nothing of the text.
type JSONError struct {
	Reason string
	Offset int   // in bytes, of what is wrong in the text
	Err    error // of encoding/json, when a Go value could not be encoded
}

// Error returns a message with the reason and the offset.
func (e *JSONError) Error() string {
	if e.Err != nil { // there is no text
		return fmt.Sprintf("fingerprint: %v: %s", ErrInvalidJSON, e.Reason)
	}
	return fmt.Sprintf("fingerprint: %v: %s at offset %d", ErrInvalidJSON, e.Reason, e.Offset)
}

// Is reports whether target is [ErrInvalidJSON].
func (e *JSONError) Is(target error) bool { return target == ErrInvalidJSON }

// Unwrap returns Err.
func (e *JSONError) Unwrap() error { return e.Err }

// JSON returns the fingerprint of a JSON value in its canonical form (RFC 8785):
// spaces, the order of members, escapes and the spelling of numbers do not matter;
// strings are compared as they are, without Unicode normalization. A v of type
// []byte or [json.RawMessage] is JSON text, and anything else is encoded with
// encoding/json first.
//
// It returns a [*JSONError] for a text that is not exactly one JSON value, is
// nested deeper than [MaxDepth], has a member name twice in one object, invalid
// UTF-8, half of a surrogate pair, or a number that is not the one its canonical
// form names (see the package documentation); and for a Go value that encoding/json
// cannot encode, or whose encoding has the escape \ufffd, which it writes in place
// of invalid UTF-8.
func JSON(v any) (idem.Fingerprint, error) {
	text, encoded, err := textOf(v)
	if err != nil {
		return idem.Fingerprint{}, err
	}
	root, err := parse(text)
	if err != nil {
		return idem.Fingerprint{}, err
	}
	if encoded {
		if i := replaced(text); i >= 0 {
			return idem.Fingerprint{}, &JSONError{Reason: "a string that was not valid UTF-8", Offset: i}
		}
	}
	canonical, err := canonical(text, root)
	if err != nil {
		return idem.Fingerprint{}, err
	}
	return of(recipeJSON, canonical), nil
}

func textOf(v any) (text []byte, encoded bool, err error) {
	switch v := v.(type) {
	case []byte:
		return v, false, nil
	case json.RawMessage:
		return v, false, nil
	}
	if text, err = json.Marshal(v); err != nil {
		return nil, false, &JSONError{Reason: fmt.Sprintf("a %T that encoding/json cannot encode", v), Err: err}
	}
	return text, true, nil
}

// replaced returns where encoding/json put U+FFFD in place of invalid UTF-8, or
// -1. It writes the escape for that.
func replaced(text []byte) int {
	for i := 0; ; i += 2 {
		n := bytes.IndexByte(text[i:], '\\')
		if n < 0 {
			return -1
		}
		if i += n; len(text) >= i+6 && bytes.EqualFold(text[i:i+6], []byte(`\ufffd`)) {
			return i
		}
	}
}

// canonical returns the canonical form of one value of a text that was parsed.
func canonical(text []byte, n *node) ([]byte, error) {
	if off := n.inexact(text); off >= 0 {
		return nil, &JSONError{Reason: "a number that a double cannot hold exactly", Offset: off}
	}
	b, err := jcs.Transform(text[n.start:n.end])
	if err != nil { // the message quotes the text
		return nil, &JSONError{Reason: "a value without a canonical form", Offset: n.start}
	}
	return b, nil
}
