// Package fingerprint makes the [idem.Fingerprint] that says what a request means.
// A repeat of a key with another fingerprint is [idem.ErrMismatch], so choose what
// a client that repeats itself sends alike, and nothing else: no time of sending,
// no trace ID, no credential.
//
//   - [Bytes] when a repeat is the same bytes: method, path, body.
//   - [JSON] when a client may encode the same value anew: other spaces, another
//     order of members, 1.0 instead of 1.
//   - [Fields] when only some fields say what is asked for.
//   - [None] when the key alone says it.
//
// Sums are SHA-256, under a recipe with a version ("json.v1"). Another recipe is
// a mismatch too, told apart as [idem.MismatchRecipe]: changing the recipe of an
// operation refuses the repeats of requests that were first seen before.
//
// # Equal means equal
//
// Two different values never have one fingerprint, SHA-256 granted. RFC 8785,
// which [JSON] follows, reads numbers as IEEE 754 doubles, which makes
// 9007199254740993 and 9007199254740992 one. A number whose canonical form is another
// number is therefore refused with [ErrInvalidJSON], as are the inputs that
// parsers disagree on: a member name used twice, invalid UTF-8, half of a
// surrogate pair. Clients send such numbers as strings (RFC 8785, appendix D); for
// others, [Bytes] compares the text, and [Fields] what it is pointed at.
package fingerprint

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/idem-go/idem"
)

// The recipes. A change of what is summed, or how, is a new version.
const (
	recipeBytes  = "bytes.v1"
	recipeJSON   = "json.v1"
	recipeFields = "fields.v1"
	recipeNone   = "none.v1"
)

// Bytes returns the fingerprint of a list of parts: their number, and each after
// its length, so that no two different lists have one fingerprint. A nil part is
// an empty one.
func Bytes(parts ...[]byte) idem.Fingerprint {
	return of(recipeBytes, parts...)
}

// None returns the fingerprint of every request: whatever comes with the key is a
// repeat, and nobody notices a key that was used for something else.
func None() idem.Fingerprint { return of(recipeNone) }

// of sums the number of parts, and each part after its length.
func of(recipe string, parts ...[]byte) idem.Fingerprint {
	h := sha256.New()
	var n [8]byte
	h.Write(binary.BigEndian.AppendUint64(n[:0], uint64(len(parts))))
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(n[:0], uint64(len(p))))
		h.Write(p)
	}
	return idem.NewFingerprint(recipe, h.Sum(nil))
}
