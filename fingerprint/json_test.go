package fingerprint

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/idem-go/idem"
)

func canonicalOf(t *testing.T, text string) string {
	t.Helper()
	root, err := parse([]byte(text))
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	b, err := canonical([]byte(text), root)
	if err != nil {
		t.Fatalf("canonical: %v", err)
	}
	return string(b)
}

// TestRFC8785 has the examples of sections 3.2.2 to 3.2.4 of RFC 8785. One number
// differs: the RFC writes 333333333.33333329 and rounds it, which is refused here.
func TestRFC8785(t *testing.T) {
	const sample = `{
  "numbers": [%, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}`
	text := strings.Replace(sample, "%", "333333333.3333333", 1)
	want := `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`
	if got := canonicalOf(t, text); got != want {
		t.Errorf("canonical form\n%s, want\n%s", got, want)
	}
	var bad *JSONError
	text = strings.Replace(sample, "%", "333333333.33333329", 1)
	if _, err := JSON([]byte(text)); !errors.As(err, &bad) || bad.Offset != strings.Index(text, "333") {
		t.Errorf("a number that is rounded: %v", err)
	}

	const sorting = `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",
		"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`
	want = `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis",` +
		`"€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`
	if got := canonicalOf(t, sorting); got != want {
		t.Errorf("canonical form\n%s, want\n%s", got, want)
	}
}

// TestRFC8785Numbers has the table of appendix B of RFC 8785.
func TestRFC8785Numbers(t *testing.T) {
	for _, tt := range []struct {
		bits uint64
		want string
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		// The same number, spelled in another way.
		text := strconv.FormatFloat(math.Float64frombits(tt.bits), 'E', -1, 64)
		if got := canonicalOf(t, text); got != tt.want {
			t.Errorf("%016x is %s, want %s", tt.bits, got, tt.want)
		}
		if a, b := mustJSON(t, text), mustJSON(t, tt.want); a != b {
			t.Errorf("%s and %s differ", text, tt.want)
		}
	}
}

func mustJSON(t *testing.T, text string) idem.Fingerprint {
	t.Helper()
	f, err := JSON(json.RawMessage(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return f
}

func TestEqualValues(t *testing.T) {
	for _, texts := range [][]string{
		{`1`, `1.0`, `1e0`, `10e-1`, `0.1E1`, ` 1 `, "1\r\n\t"},
		{`100`, `1e2`, `1E+2`, `100.00`, `0.000000000000000000001e23`},
		{`0`, `-0`, `0.0`, `-0e99999999999999999999`, `0E-5`},
		{`9007199254740992000`, `9.007199254740992e18`},
		{`"a\/b"`, `"a/b"`, `"\u0061/b"`},
		{`"😀"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`},
		{`"\ufffd"`, "\"\ufffd\""},
		{`{"a":1,"b":[true,null]}`, `{ "b" : [ true , null ] , "a" : 1.0 }`, `{"\u0062":[true,null],"a":1}`},
		{`[]`, `[ ]`},
		{`{}`, "{\n}"},
	} {
		for _, text := range texts[1:] {
			if got, want := mustJSON(t, text), mustJSON(t, texts[0]); got != want {
				t.Errorf("%s and %s differ", text, texts[0])
			}
		}
	}
}

func TestDifferentValues(t *testing.T) {
	seen := make(map[idem.Fingerprint]string)
	for _, text := range []string{
		`null`, `true`, `false`, `0`, `1`, `-1`, `""`, `"0"`, `"1"`, `"null"`, `[]`, `{}`, `[[]]`, `[{}]`, `[null]`,
		`[0]`, `[1,2]`, `[2,1]`, `[12]`, `["1","2"]`, `["1,2"]`, `["1\",\"2"]`, `{"a":null}`, `{"a":{}}`, `{"a":1,"b":2}`,
		`{"a":2,"b":1}`, `{"a":"1","b":2}`, `{"a:1,b":2}`, `{"":1}`, `"\u00e9"`, `"e\u0301"`, `"\u0000"`, `"\\u0000"`, `" "`,
		`9007199254740991`, `9007199254740992`, `9007199254740994`, `0.1`, `0.10000000000000002`, `1e-7`, `1e21`, `1e22`,
	} {
		f := mustJSON(t, text)
		if other, ok := seen[f]; ok {
			t.Errorf("%s and %s have one fingerprint", text, other)
		}
		seen[f] = text
	}
}

func TestRefused(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth)
	if _, err := JSON([]byte(deep)); err != nil {
		t.Errorf("%d arrays in each other: %v", MaxDepth, err)
	}
	for _, tt := range []struct {
		text, reason string
		offset       int
	}{
		{"", "no JSON value", 0},
		{"  ", "no JSON value", 2},
		{"nul", "no JSON value", 0},
		{"[secret]", "no JSON value", 1},
		{"{} {}", "data after", 3},
		{"nullx", "data after", 4},
		{"01", "data after", 1},
		{"-", "without digits", 1},
		{"1.", "without digits", 2},
		{"1e+", "without digits", 3},
		{"+1", "no JSON value", 0},
		{"NaN", "no JSON value", 0},
		{"\ufeff1", "no JSON value", 0},
		{"[1 2]", "comma", 3},
		{"[1,]", "no JSON value", 3},
		{"[1", "comma", 2},
		{`{"a" 1}`, "colon", 5},
		{`{"a":1,}`, "no string", 7},
		{`{a:1}`, "no string", 1},
		{`{"a":1 "b":2}`, "comma", 7},
		{`{"a":1,"a":1}`, "used before", 7},
		{`{"a":1,"\u0061":2}`, "used before", 7},
		{`{"b":{"a":1,"c":2,"a":3}}`, "used before", 18},
		{`"secret`, "without an end", 7},
		{"\"a\tb\"", "control character", 2},
		{"\"a\x00\"", "control character", 2},
		{`"\x"`, "escape", 2},
		{`"\u12g4"`, "escape", 3},
		{`"\u+123"`, "escape", 3},
		{`"\u12`, "escape", 3},
		{`"\ud800"`, "surrogate", 1},
		{`"\udc00"`, "surrogate", 1},
		{`"\ud800\ud800"`, "surrogate", 1},
		{`"\ud800\u0061"`, "surrogate", 1},
		{`"\ud800\n"`, "escape", 8},
		{`"\udc00\ud800"`, "surrogate", 1},
		{"\"a\xff\"", "UTF-8", 2},
		{"\"\xc0\xaf\"", "UTF-8", 1},
		{"\"\xed\xa0\x80\"", "UTF-8", 1},
		{"{\"\xff\":1}", "UTF-8", 2},
		{"[" + deep + "]", "nesting", MaxDepth},
		{strings.Repeat("[", 1<<20), "nesting", MaxDepth},
		{strings.Repeat(`{"a":`, 1<<20), "nesting", MaxDepth * 5},
		{`9007199254740993`, "double", 0},
		{`[1,-9007199254740993]`, "double", 3},
		{`9.007199254740993e15`, "double", 0},
		{`{"a":[0.1,0.1000000000000000055511151231257827]}`, "double", 10},
		{`1e400`, "double", 0},
		{`-1e400`, "double", 0},
		{`1e-400`, "double", 0},
		{`1e99999999999999999999`, "double", 0},
		{`2.2250738585072011e-308`, "double", 0}, // hung parsers once
		{`1e-99999999999999999999`, "double", 0},
		{`18446744073709551615`, "double", 0},
	} {
		_, err := JSON([]byte(tt.text))
		var bad *JSONError
		if !errors.As(err, &bad) || !errors.Is(err, ErrInvalidJSON) || !strings.Contains(bad.Reason, tt.reason) || bad.Offset != tt.offset {
			t.Errorf("%.40q: error %v, want %q at offset %d", tt.text, err, tt.reason, tt.offset)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%.40q: the message quotes the text: %v", tt.text, err)
		}
	}
}

// TestField_C04_LargeIntegers: two numbers that a double cannot tell apart are not
// taken for one request.
func TestField_C04_LargeIntegers(t *testing.T) {
	mustJSON(t, `{"id":9007199254740992}`)
	if _, err := JSON([]byte(`{"id":9007199254740993}`)); !errors.Is(err, ErrInvalidJSON) {
		t.Errorf("9007199254740993 in JSON text: %v", err)
	}
	for _, v := range []any{int64(math.MaxInt64), uint64(math.MaxUint64), json.Number("9007199254740993")} {
		if _, err := JSON(v); !errors.Is(err, ErrInvalidJSON) {
			t.Errorf("%T %v: %v", v, v, err)
		}
	}
	if mustJSON(t, `"9007199254740993"`) == mustJSON(t, `"9007199254740992"`) {
		t.Error("large integers as strings have one fingerprint")
	}
}

func TestGoValues(t *testing.T) {
	type order struct {
		Item string  `json:"item"`
		Qty  int     `json:"qty"`
		Note *string `json:"note"`
	}
	got, err := JSON(order{Item: "<tea>", Qty: 2})
	if err != nil {
		t.Fatal(err)
	}
	if want := mustJSON(t, `{"qty":2.0,"note":null,"item":"<tea>"}`); got != want {
		t.Error("a struct and its JSON text differ")
	}
	if got, err := JSON(nil); err != nil || got != mustJSON(t, "null") {
		t.Errorf("nil: %v", err)
	}
	if got, err := JSON("\ufffd \\ufffd"); err != nil || got != mustJSON(t, `"\ufffd \\ufffd"`) {
		t.Errorf("U+FFFD and a backslash: %v", err)
	}
	for name, v := range map[string]any{
		"a function":          func() {},
		"a NaN":               math.NaN(),
		"invalid UTF-8":       "a\xff",
		"invalid UTF-8 twice": map[string]int{"\xff": 1, "\xfe": 2},
		"one of many":         []string{"\\", "\xff"},
		"an own encoding":     json.RawMessage(nil),
		"broken":              struct{ R json.RawMessage }{json.RawMessage("{")},
	} {
		var bad *JSONError
		if _, err := JSON(v); !errors.As(err, &bad) || !errors.Is(err, ErrInvalidJSON) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = JSON(struct{ C chan int }{})
	var unsupported *json.UnsupportedTypeError
	if !errors.As(err, &unsupported) {
		t.Errorf("a channel: %v, want the error of encoding/json inside", err)
	}
}
