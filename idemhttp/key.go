package idemhttp

import (
	"net/http"
	"strings"

	"github.com/idem-go/idem/driver"
)

// keyIn returns the key in the field name of h. Present is false when there is no
// such field; otherwise reason says, if not empty, why its value is no key.
//
// A header map that was filled by hand may hold the name in another spelling.
func keyIn(h http.Header, name string) (id string, present bool, reason string) {
	var value string
	n := 0
	for k, vv := range h {
		if len(k) == len(name) && len(vv) > 0 && (k == name || strings.EqualFold(k, name)) {
			n += len(vv)
			value = vv[0]
		}
	}
	switch n {
	case 0:
		return "", false, ""
	case 1:
		id, reason = parseKey(value)
		return id, true, reason
	}
	return "", true, "the field occurs more than once"
}

// parseKey reads a field value: a string of RFC 8941, which may hold any key, or
// the bare key, which has neither quotes nor commas, since a proxy may have joined
// two fields with a comma (RFC 9110, section 5.3).
func parseKey(value string) (id, reason string) {
	value = strings.Trim(value, " \t")
	if strings.HasPrefix(value, `"`) {
		if id, reason = unquote(value); reason != "" {
			return "", reason
		}
	} else {
		if strings.IndexByte(value, '"') >= 0 || strings.IndexByte(value, ',') >= 0 {
			return "", "a bare key has no quotes or commas"
		}
		id = value
	}
	if (driver.Key{Scope: "s", ID: id}).Validate() != nil {
		switch {
		case strings.Trim(id, " ") == "":
			return "", "it is blank"
		case len(id) > driver.MaxID:
			return "", "it is longer than 255 bytes"
		}
		return "", "it is not printable ASCII"
	}
	return id, ""
}

// unquote reads a string of RFC 8941, section 3.3.3, without parameters.
func unquote(value string) (s, reason string) {
	rest := value[1:]
	if i := strings.IndexByte(rest, '"'); i >= 0 && i == len(rest)-1 && strings.IndexByte(rest, '\\') < 0 { // no escapes: no copy
		return rest[:i], ""
	}
	var b strings.Builder
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; c {
		case '"':
			if i != len(rest)-1 {
				return "", "something follows the closing quote"
			}
			return b.String(), ""
		case '\\':
			i++
			if i == len(rest) || rest[i] != '"' && rest[i] != '\\' {
				return "", "a backslash stands before neither a quote nor a backslash"
			}
			b.WriteByte(rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "the closing quote is missing"
}
