package driver

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Limits on a key; see [Key.Validate].
const (
	MaxScope = 255 // bytes in Key.Scope
	MaxID    = 255 // bytes in Key.ID
)

// Key names one operation of one principal.
type Key struct {
	Scope string // whose key it is; never empty
	ID    string // what the caller chose
}

// Validate reports, as an error that wraps [ErrInvalidKey], a scope or an ID
// that is empty, too long, not made of printable ASCII bytes (0x20 to 0x7E), or
// made of spaces only. The rule is one for all drivers, and strict
// enough for the strictest: no NUL, no invalid UTF-8, no index row too large.
// The error never contains the key.
func (k Key) Validate() error {
	if err := validName("scope", k.Scope, MaxScope); err != nil {
		return err
	}
	return validName("id", k.ID, MaxID)
}

func validName(name, s string, most int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalidKey, name)
	case len(s) > most:
		return fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrInvalidKey, name, len(s), most)
	case !printable(s):
		return fmt.Errorf("%w: %s is not printable ASCII", ErrInvalidKey, name)
	case blank(s):
		return fmt.Errorf("%w: %s is blank", ErrInvalidKey, name)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func blank(s string) bool {
	for i := range len(s) {
		if s[i] != ' ' {
			return false
		}
	}
	return true
}

// KeyHash is the primary key of a stored record.
type KeyHash [16]byte

// Hash returns 16 bytes of SHA-256 over namespace, scope and ID, each preceded
// by its length so that no two different triples hash alike by concatenation.
// With a secret it is HMAC-SHA-256: then nobody who can read the store can test
// a guessed key. Namespace separates applications that share a store.
//
// Hashed keys cost half the write-ahead log of text keys, fit every index, and
// cannot forget the scope.
func (k Key) Hash(namespace string, secret []byte) KeyHash {
	// 3 lengths, a namespace of ordinary length and the largest key.
	buf := make([]byte, 0, 3*4+64+MaxScope+MaxID)
	for _, s := range [...]string{namespace, k.Scope, k.ID} {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(s)))
		buf = append(buf, s...)
	}
	if len(secret) > 0 {
		mac := hmac.New(sha256.New, secret)
		mac.Write(bytes.Clone(buf)) // buf stays off the heap where there is no secret
		return KeyHash(mac.Sum(nil)[:len(KeyHash{})])
	}
	sum := sha256.Sum256(buf)
	return KeyHash(sum[:len(KeyHash{})])
}

// String returns the hash in hexadecimal.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// Token names the holder of a claim. It is random, so that no two holders are
// ever the same, whatever they are called.
type Token [16]byte

// NewToken returns a new random token.
func NewToken() Token {
	var t Token
	rand.Read(t[:]) // never fails since Go 1.24
	return t
}

// IsZero reports whether t is no token.
func (t Token) IsZero() bool { return t == Token{} }

// String returns the token in hexadecimal.
func (t Token) String() string { return hex.EncodeToString(t[:]) }
