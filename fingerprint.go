package idem

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/idem-go/idem/driver"
)

// Limits on a fingerprint; see [NewFingerprint].
const (
	MaxRecipe = 32 // bytes in a recipe's name
	MaxSum    = 64 // bytes in a sum
)

// fingerprintVersion is the first byte of the stored form.
const fingerprintVersion = 1

// Fingerprint says what a request means. A repeat of a key with another
// fingerprint is [ErrMismatch]. The zero value is refused with
// [ErrInvalidFingerprint]: package fingerprint makes them, and fingerprint.None
// is the spelled-out opt-out. Fingerprints are comparable.
type Fingerprint struct {
	recipe, sum, summary string
}

// NewFingerprint makes a fingerprint for a recipe of one's own. The recipe names
// how the sum was made, with a version ("invoice.v2"), so that a changed recipe
// is told from a changed request: 1 to [MaxRecipe] bytes of printable ASCII. The
// sum is what is compared: 1 to [MaxSum] bytes, usually a hash. A fingerprint
// outside these limits is [ErrInvalidFingerprint] when it is used.
func NewFingerprint(recipe string, sum []byte) Fingerprint {
	return Fingerprint{recipe: recipe, sum: string(sum)}
}

// WithSummary returns f with a text that describes the request to a person
// ("POST /orders, 3 items"). It is stored in the clear and shown on a mismatch
// ([MismatchError]), and is not compared: leave secrets out. Text over
// [driver.MaxSummary] bytes is cut; NUL and invalid UTF-8 are dropped.
func (f Fingerprint) WithSummary(summary string) Fingerprint {
	if !utf8.ValidString(summary) {
		summary = strings.ToValidUTF8(summary, "")
	}
	summary = strings.ReplaceAll(summary, "\x00", "")
	if len(summary) > driver.MaxSummary {
		cut := driver.MaxSummary
		for !utf8.RuneStart(summary[cut]) {
			cut--
		}
		summary = summary[:cut]
	}
	f.summary = summary
	return f
}

// Recipe returns the name of the recipe.
func (f Fingerprint) Recipe() string { return f.recipe }

// Sum returns what is compared.
func (f Fingerprint) Sum() []byte { return []byte(f.sum) }

// Summary returns the text given to [Fingerprint.WithSummary].
func (f Fingerprint) Summary() string { return f.summary }

func (f Fingerprint) validate() error {
	switch {
	case f.recipe == "" && f.sum == "":
		return fmt.Errorf("%w: it is the zero value", ErrInvalidFingerprint)
	case f.recipe == "" || len(f.recipe) > MaxRecipe || !printable(f.recipe):
		return fmt.Errorf("%w: recipe %q is not 1 to %d bytes of printable ASCII", ErrInvalidFingerprint, f.recipe, MaxRecipe)
	case f.sum == "" || len(f.sum) > MaxSum:
		return fmt.Errorf("%w: sum has %d bytes, want 1 to %d", ErrInvalidFingerprint, len(f.sum), MaxSum)
	}
	return nil
}

// encode appends the stored form: version, length of the recipe, recipe, sum.
func (f Fingerprint) encode(b []byte) []byte {
	b = append(b, fingerprintVersion, byte(len(f.recipe)))
	b = append(b, f.recipe...)
	return append(b, f.sum...)
}

// storedRecipe returns the part of a stored fingerprint that says how it was
// made: its version and its recipe. It is empty when the form is not known.
func storedRecipe(stored []byte) string {
	if len(stored) < 2 || stored[0] != fingerprintVersion || int(stored[1]) > len(stored)-2 {
		return ""
	}
	return string(stored[2 : 2+int(stored[1])])
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
