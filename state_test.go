package idem

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/driver"
)

// TestTableInDocumentation keeps the package documentation equal to the code.
func TestTableInDocumentation(t *testing.T) {
	name := func(n int, s fmt.Stringer) string {
		if n == 0 {
			return "any"
		}
		return s.String()
	}
	lines := []string{fmt.Sprintf("//\t%-10s %-16s %-16s %s", "state", "request", "claim", "action")}
	for _, r := range rules {
		l, h := likeness(0), holding(0)
		if len(r.request) > 1 || len(r.holding) > 1 {
			t.Fatalf("row %v has a set that the documentation cannot print", r)
		}
		if len(r.request) == 1 {
			l = r.request[0]
		}
		if len(r.holding) == 1 {
			h = r.holding[0]
		}
		lines = append(lines, fmt.Sprintf("//\t%-10v %-16s %-16s %v", r.state, name(len(r.request), l), name(len(r.holding), h), r.action))
	}
	want := strings.Join(lines, "\n") + "\n"
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), want) {
		t.Errorf("doc.go does not contain the table of the code:\n%s", want)
	}
}

// TestDecideEveryCell states the answer of every combination by hand, so that a
// change of the table is a change of this one.
func TestDecideEveryCell(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	token, other := driver.NewToken(), driver.NewToken()
	req := request{operation: "op", fingerprint: []byte("fp")}

	records := map[string]driver.Record{
		"no record":   {},
		"released":    {State: driver.StateReleased, LeaseUntil: now.Add(time.Hour), RetainUntil: now.Add(time.Hour)},
		"live":        {State: driver.StateInFlight, LeaseUntil: now.Add(1), RetainUntil: now.Add(time.Hour)},
		"transaction": {State: driver.StateInFlight},
		"lease ended": {State: driver.StateInFlight, LeaseUntil: now, RetainUntil: now.Add(time.Hour)},
		"abandoned":   {State: driver.StateInFlight, LeaseUntil: now.Add(-2), RetainUntil: now.Add(-1)},
		"complete":    {State: driver.StateComplete, RetainUntil: now.Add(1), GraceUntil: now.Add(1)},
		"tombstone":   {State: driver.StateComplete, RetainUntil: now, GraceUntil: now.Add(1)},
		"over":        {State: driver.StateComplete, RetainUntil: now.Add(-1), GraceUntil: now},
	}
	// Per record, the actions for: the same request, another, one not known.
	type row [3]action
	always := func(a action) row { return row{a, a, a} }
	want := map[string]map[string]row{}
	for _, h := range []string{"rerun", "record holds", "call holds", "ours"} {
		want[h] = map[string]row{
			"no record":   always(actClaim),
			"released":    always(actClaim),
			"live":        {actInFlight, actMismatch, actInFlight},
			"transaction": {actInFlight, actMismatch, actInFlight},
			"lease ended": {actTakeover, actMismatch, actTakeover},
			"abandoned":   always(actClaim),
			"complete":    {actReplay, actMismatch, actReplay},
			"tombstone":   always(actExpired),
			"over":        always(actClaim),
		}
	}
	for _, h := range []string{"record holds", "call holds"} {
		want[h]["lease ended"] = row{actUnknown, actMismatch, actUnknown}
	}
	want["record holds"]["abandoned"] = row{actUnknown, actMismatch, actUnknown} // a held record is never over
	for _, r := range []string{"live", "transaction", "lease ended"} {
		want["ours"][r] = always(actRun)
	}

	for h, rows := range want {
		for name, rec := range records {
			req, rec := req, rec
			rec.Token = other
			switch h {
			case "record holds":
				rec.Hold = true
			case "call holds":
				req.hold = true
			case "ours":
				rec.Token = token
			}
			for i, like := range []struct{ operation, fingerprint string }{{"op", "fp"}, {"op", "other"}, {}} {
				rec.Operation, rec.Fingerprint = like.operation, []byte(like.fingerprint)
				if got := decide(&rec, &req, token, now); got != rows[name][i] {
					t.Errorf("%s, %s, stored %q: %v, want %v", name, h, like, got, rows[name][i])
				}
			}
			if h == "rerun" && records[name].State != driver.StateAbsent {
				rec.Operation, rec.Fingerprint = "other op", []byte("fp")
				if got := decide(&rec, &req, token, now); got != rows[name][1] {
					t.Errorf("%s, another operation: %v, want %v", name, got, rows[name][1])
				}
			}
		}
	}
}

// A token that is zero owns nothing, not even a record without a token.
func TestZeroTokenOwnsNothing(t *testing.T) {
	now := time.Now()
	rec := driver.Record{State: driver.StateInFlight, LeaseUntil: now.Add(time.Hour)}
	if got := decide(&rec, &request{}, driver.Token{}, now); got != actInFlight {
		t.Errorf("decide = %v, want %v", got, actInFlight)
	}
}

func TestMismatchReason(t *testing.T) {
	fp := NewFingerprint("a.v1", []byte("sum"))
	for _, tc := range []struct {
		operation string
		fp        Fingerprint
		want      MismatchReason
	}{
		{"other", fp, MismatchOperation},
		{"op", NewFingerprint("a.v2", []byte("sum")), MismatchRecipe},
		{"op", NewFingerprint("a.v1", []byte("other")), MismatchRequest},
	} {
		rec := driver.Record{Operation: tc.operation, Fingerprint: tc.fp.encode(nil), Summary: "s", CreatedAt: time.Unix(1, 0)}
		got := mismatch(&rec, &request{operation: "op", fingerprint: fp.encode(nil)}).(*MismatchError)
		if got.Reason != tc.want || got.Operation != tc.operation || got.Summary != "s" || !got.FirstSeen.Equal(time.Unix(1, 0)) {
			t.Errorf("mismatch = %+v, want reason %q", got, tc.want)
		}
	}
}

// No two fingerprints have one stored form, and the zero value has none.
func TestFingerprintStoredForm(t *testing.T) {
	seen := map[string]Fingerprint{}
	for _, recipe := range []string{"a", "ab", "abc", strings.Repeat("r", MaxRecipe)} {
		for _, sum := range []string{"c", "bc", "abc", strings.Repeat("\x00", MaxSum)} {
			f := NewFingerprint(recipe, []byte(sum))
			if err := f.validate(); err != nil {
				t.Errorf("%q, %q: %v", recipe, sum, err)
			}
			b := f.encode(nil)
			if len(b) > driver.MaxFingerprint {
				t.Errorf("%q, %q: %d bytes, a driver stores %d", recipe, sum, len(b), driver.MaxFingerprint)
			}
			if other, ok := seen[string(b)]; ok {
				t.Errorf("%v and %v have one stored form", f, other)
			}
			seen[string(b)] = f
			if got := storedRecipe(b); got != recipe {
				t.Errorf("storedRecipe = %q, want %q", got, recipe)
			}
		}
	}
	for _, f := range []Fingerprint{
		{}, NewFingerprint("", []byte("s")), NewFingerprint("r", nil), NewFingerprint("r\n", []byte("s")),
		NewFingerprint(strings.Repeat("r", MaxRecipe+1), []byte("s")), NewFingerprint("r", make([]byte, MaxSum+1)),
	} {
		if err := f.validate(); err == nil {
			t.Errorf("%q is valid", f)
		}
	}
	for _, b := range [][]byte{nil, {1}, {2, 0}, {1, 5, 'a'}} {
		if got := storedRecipe(b); got != "" {
			t.Errorf("storedRecipe(%q) = %q, want none", b, got)
		}
	}
}

func TestFingerprintSummary(t *testing.T) {
	long := strings.Repeat("é", driver.MaxSummary)
	for in, want := range map[string]string{
		"": "", "POST /orders": "POST /orders", "a\x00b\xffc": "abc",
		"x" + long: "x" + long[:driver.MaxSummary-2],
	} {
		if got := NewFingerprint("r", []byte("s")).WithSummary(in).Summary(); got != want {
			t.Errorf("summary of %q is %q, want %q", in, got, want)
		}
	}
}
