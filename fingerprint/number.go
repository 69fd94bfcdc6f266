package fingerprint

import (
	"strconv"
	"strings"
)

// inexact returns the offset of the first number under n whose canonical form is
// another number, and -1 when there is none.
func (n *node) inexact(text []byte) int {
	if n.kind == '0' && !exact(string(text[n.start:n.end])) {
		return n.start
	}
	for _, v := range n.values {
		if off := v.inexact(text); off >= 0 {
			return off
		}
	}
	return -1
}

// exact reports whether a number is the one that the shortest decimal of its
// double names: the form in which RFC 8785 writes it.
func exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return false // out of range
	}
	a, ok := normal(number)
	b, _ := normal(strconv.FormatFloat(f, 'e', -1, 64))
	return ok && a == b
}

// decimal is 0.digits times ten to the power of exp, without zeros at either end.
type decimal struct {
	negative bool
	digits   string
	exp      int
}

// normal returns the value of a JSON number, and false when its exponent is
// beyond counting.
func normal(number string) (d decimal, ok bool) {
	number, d.negative = strings.CutPrefix(number, "-")
	mantissa, exp := number, ""
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa, exp = number[:i], number[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := whole + fraction
	d.digits = strings.TrimLeft(digits, "0")
	d.exp = len(whole) - (len(digits) - len(d.digits))
	d.digits = strings.TrimRight(d.digits, "0")
	if d.digits == "" {
		return decimal{}, true // -0 is 0
	}
	if exp != "" {
		e, err := strconv.ParseInt(exp, 10, 32)
		if err != nil {
			return d, false
		}
		d.exp += int(e)
	}
	return d, true
}
