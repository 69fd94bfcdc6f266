package fingerprint

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/idem-go/idem"
)

// ErrInvalidPointer is matched by the error of [Fields] for a pointer that is not
// a JSON Pointer, or for none at all: a mistake in the program, not in the request.
var ErrInvalidPointer = errors.New("invalid JSON Pointer")

// Fields returns the fingerprint of some fields of a JSON text, named by JSON
// Pointers (RFC 6901): "/customer/id", "/items/0", "" for the whole. Each is
// compared as [JSON] does. A field that is missing differs from null, and is no
// error: a pointer that is misspelled makes all requests alike.
//
// The pointers are part of the fingerprint: another set of them is another
// fingerprint. Their order and repetitions do not matter.
//
// It returns [ErrInvalidPointer], and a [*JSONError] for what [JSON] refuses. A
// number that a double cannot hold exactly is refused only in a field that is
// named.
func Fields(body []byte, pointers ...string) (idem.Fingerprint, error) {
	if len(pointers) == 0 {
		return idem.Fingerprint{}, fmt.Errorf("fingerprint: %w: no pointers", ErrInvalidPointer)
	}
	pointers = slices.Clone(pointers)
	slices.Sort(pointers)
	pointers = slices.Compact(pointers)
	paths := make([][]string, len(pointers))
	for i, p := range pointers {
		path, ok := split(p)
		if !ok {
			return idem.Fingerprint{}, fmt.Errorf("fingerprint: %w: %q", ErrInvalidPointer, p)
		}
		paths[i] = path
	}
	root, err := parse(body)
	if err != nil {
		return idem.Fingerprint{}, err
	}
	var parts [][]byte
	for i, path := range paths {
		var value []byte // no JSON value is empty: this is a field that is missing
		if n := root.at(path); n != nil {
			if value, err = canonical(body, n); err != nil {
				return idem.Fingerprint{}, err
			}
		}
		parts = append(parts, []byte(pointers[i]), value)
	}
	return of(recipeFields, parts...), nil
}

// split returns the reference tokens of a pointer.
func split(pointer string) (path []string, ok bool) {
	if pointer == "" {
		return nil, true
	}
	if pointer[0] != '/' {
		return nil, false
	}
	path = strings.Split(pointer[1:], "/")
	for i, token := range path {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(token); strings.Contains(rest, "~") {
			return nil, false
		}
		path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
	}
	return path, true
}

// at returns the value at a path under n, or nil.
func (n *node) at(path []string) *node {
	for _, token := range path {
		i := -1
		switch n.kind {
		case '{':
			i = slices.Index(n.names, token)
		case '[':
			// Only as RFC 6901 writes an index: no sign, no zeros in front.
			if v, err := strconv.ParseUint(token, 10, 31); err == nil && strconv.FormatUint(v, 10) == token && int(v) < len(n.values) {
				i = int(v)
			}
		}
		if i < 0 {
			return nil
		}
		n = n.values[i]
	}
	return n
}
