package fingerprint

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = 1000

// node is one value of a JSON text, by its place in it. encoding/json cannot
// serve here: it takes the last of two members of one name, and replaces what is
// not UTF-8.
type node struct {
	start, end int
	kind       byte // '{', '[', '"', '0' for numbers, 'l' for literals
	names      []string
	values     []*node // members of an object, elements of an array
}

// parse reads a text that is exactly one JSON value.
func parse(text []byte) (root *node, err error) {
	p := parser{text: text}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *JSONError:
			root, err = nil, e
		default:
			panic(e)
		}
	}()
	p.space()
	root = p.value(0)
	p.space()
	if p.i < len(text) {
		p.fail("data after the value")
	}
	return root, nil
}

// parser fails by panicking with a *JSONError, which parse recovers.
type parser struct {
	text []byte
	i    int
}

func (p *parser) fail(reason string) { panic(&JSONError{Reason: reason, Offset: p.i}) }

// peek returns the next byte, and 0 (which stands nowhere in JSON) at the end.
func (p *parser) peek() byte {
	if p.i < len(p.text) {
		return p.text[p.i]
	}
	return 0
}

func (p *parser) space() {
	for strings.IndexByte(" \t\r\n", p.peek()) >= 0 {
		p.i++
	}
}

// skip goes past c, if it is next.
func (p *parser) skip(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.i++
	return true
}

func (p *parser) value(depth int) *node {
	n := &node{start: p.i}
	switch c := p.peek(); {
	case c == '{' || c == '[':
		if depth == MaxDepth {
			p.fail("nesting deeper than " + strconv.Itoa(MaxDepth))
		}
		n.kind = c
		p.i++
		p.children(n, depth+1)
	case c == '"':
		n.kind = '"'
		p.string()
	case c == '-' || c >= '0' && c <= '9':
		n.kind = '0'
		p.number()
	default:
		n.kind = 'l'
		p.literal()
	}
	n.end = p.i
	return n
}

// children reads the rest of an array or an object.
func (p *parser) children(n *node, depth int) {
	object := n.kind == '{'
	end := n.kind + 2 // ']' and '}' stand two after their openers
	p.space()
	if p.skip(end) {
		return
	}
	seen := make(map[string]bool)
	for {
		if object {
			at := p.i
			name := p.string()
			if seen[name] {
				p.i = at
				p.fail("a member name that was used before in its object")
			}
			seen[name] = true
			n.names = append(n.names, name)
			p.space()
			if !p.skip(':') {
				p.fail("no colon after a member name")
			}
			p.space()
		}
		n.values = append(n.values, p.value(depth))
		p.space()
		if p.skip(end) {
			return
		}
		if !p.skip(',') {
			p.fail("neither a comma nor the end of an array or object")
		}
		p.space()
	}
}

func (p *parser) literal() {
	for _, l := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(string(p.text[p.i:min(len(p.text), p.i+len(l))]), l) {
			p.i += len(l)
			return
		}
	}
	p.fail("no JSON value")
}

func (p *parser) number() {
	p.skip('-')
	if !p.skip('0') {
		p.digits()
	}
	if p.skip('.') {
		p.digits()
	}
	if p.skip('e') || p.skip('E') {
		if !p.skip('+') {
			p.skip('-')
		}
		p.digits()
	}
}

func (p *parser) digits() {
	at := p.i
	for p.peek() >= '0' && p.peek() <= '9' {
		p.i++
	}
	if p.i == at {
		p.fail("a number without digits")
	}
}

// string reads a string and returns what it says.
func (p *parser) string() string {
	if !p.skip('"') {
		p.fail("no string")
	}
	var s strings.Builder
	for {
		switch c := p.peek(); {
		case c == '"':
			p.i++
			return s.String()
		case c == '\\':
			s.WriteRune(p.escape())
		case c < ' ':
			p.fail("a string with a control character, or without an end")
		case c < utf8.RuneSelf:
			s.WriteByte(c)
			p.i++
		default:
			r, size := utf8.DecodeRune(p.text[p.i:])
			if r == utf8.RuneError && size == 1 {
				p.fail("invalid UTF-8")
			}
			s.WriteRune(r)
			p.i += size
		}
	}
}

func (p *parser) escape() rune {
	at := p.i
	p.i++
	if i := strings.IndexByte(`"\/bfnrt`, p.peek()); i >= 0 {
		p.i++
		return rune("\"\\/\b\f\n\r\t"[i])
	}
	r := p.unit()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if p.skip('\\') {
		if pair := utf16.DecodeRune(r, p.unit()); pair != utf8.RuneError {
			return pair
		}
	}
	p.i = at
	p.fail("half of a surrogate pair")
	return 0
}

// unit reads the rest of an escape with four hexadecimal digits.
func (p *parser) unit() rune {
	if p.skip('u') && p.i+4 <= len(p.text) {
		if v, err := strconv.ParseUint(string(p.text[p.i:p.i+4]), 16, 16); err == nil {
			p.i += 4
			return rune(v)
		}
	}
	p.fail("an escape that JSON does not know")
	return 0
}
