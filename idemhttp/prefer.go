package idemhttp

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// preferences are those of RFC 7240 that the guard knows.
type preferences struct {
	wait    time.Duration // not below zero
	hasWait bool
	async   bool
}

// maxPreferred bounds wait=N before it is made a duration; the guard's own limit
// is far below.
const maxPreferred = 1 << 20 // seconds

// preferencesIn reads the fields Prefer. What is not understood is ignored, as RFC
// 7240 says, and of a preference that is repeated the first one counts.
func preferencesIn(h http.Header) (p preferences) {
	seen := ""
	for _, field := range h["Prefer"] {
		for field != "" {
			var item string
			item, field = cutUnquoted(field, ',')
			item, _ = cutUnquoted(item, ';')
			name, value, hasValue := strings.Cut(item, "=")
			name = strings.ToLower(strings.Trim(name, " \t"))
			value = unquoteWord(strings.Trim(value, " \t"))
			switch name {
			case "wait":
				if strings.Contains(seen, "w") {
					continue
				}
				seen += "w"
				if seconds, ok := deltaSeconds(value); ok && hasValue {
					p.wait, p.hasWait = time.Duration(seconds)*time.Second, true
				}
			case "respond-async":
				if strings.Contains(seen, "a") {
					continue
				}
				seen += "a"
				p.async = value == ""
			}
		}
	}
	return p
}

// cutUnquoted cuts s at the first sep outside a quoted string.
func cutUnquoted(s string, sep byte) (before, after string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case quoted && s[i] == '\\':
			i++
		case !quoted && s[i] == sep:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// unquoteWord takes the quotes off a quoted string. The values that the guard
// knows have nothing to escape.
func unquoteWord(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

func deltaSeconds(s string) (n int64, ok bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil { // out of range: as long as it may be
		n = maxPreferred
	}
	return min(n, maxPreferred), true
}
