package idemhttp_test

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/idem-go/idem/idemhttp"
)

var update = flag.Bool("update", false, "write the generated parts of docs/http.md")

const page = "../docs/http.md"

// The tables of docs/http.md are those of the code.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for name, want := range map[string]string{"refusals": refusalsTable(), "codes": codes(), "statuses": statusesTable()} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		head, rest, ok := strings.Cut(doc, begin)
		got, tail, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("docs/http.md has no part %s", name)
		}
		if got != want {
			if !*update {
				t.Errorf("part %s of docs/http.md is not what the code says; go test ./idemhttp -run TestDocs -update writes it", name)
			}
			doc = head + begin + want + end + tail
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Every field of the configuration, and every default, is explained.
	for field := range reflect.TypeFor[idemhttp.Config]().Fields() {
		if !strings.Contains(doc, "`"+field.Name+"`") {
			t.Errorf("docs/http.md does not mention Config.%s", field.Name)
		}
	}
	for _, value := range []string{idemhttp.DefaultHeader, idemhttp.DefaultReplayedHeader, "1 MiB", fmt.Sprint(int(idemhttp.DefaultMaxWait/time.Second), " s")} {
		if !strings.Contains(doc, value) {
			t.Errorf("docs/http.md does not mention the default %s", value)
		}
	}
}

// Every code is a type that the page explains.
func TestDocs_Types(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, p := range idemhttp.Problems() {
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`).MatchString(p.Code) || seen[p.Code] || p.Title == "" || p.Detail == "" {
			t.Errorf("problem %+v", p)
		}
		seen[p.Code] = true
		if anchor := p.Type[strings.IndexByte(p.Type, '#')+1:]; !strings.Contains(string(b), "\n### "+anchor+"\n") {
			t.Errorf("docs/http.md has no heading %s", anchor)
		}
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func refusalsTable() string {
	var b strings.Builder
	b.WriteString("| status | code | same key | new key |\n|---|---|---|---|\n")
	for _, p := range idemhttp.Problems() {
		fmt.Fprintf(&b, "| %d | [`%s`](#%s) | %s | %s |\n", p.Status, p.Code, p.Code, yes(p.RetrySameKey), yes(p.RetryNewKey))
	}
	return b.String()
}

func codes() string {
	var b strings.Builder
	for _, p := range idemhttp.Problems() {
		fmt.Fprintf(&b, "\n### %s\n\n%d, *%s*. %s\n", p.Code, p.Status, p.Title, p.Detail)
	}
	return b.String() + "\n"
}

// statusesTable says what DefaultSettle does with every status.
func statusesTable() string {
	names := map[idemhttp.Settlement]string{
		idemhttp.Store:           "stored and replayed; a transaction commits",
		idemhttp.StoreRolledBack: "stored and replayed; a transaction is rolled back",
		idemhttp.Release:         "not stored; a transaction is rolled back; a repeat runs",
	}
	var b strings.Builder
	b.WriteString("| status | the answer is |\n|---|---|\n")
	for from := 200; from <= 999; {
		to := from
		for to < 999 && idemhttp.DefaultSettle(to+1) == idemhttp.DefaultSettle(from) {
			to++
		}
		span := fmt.Sprint(from)
		if to > from {
			span = fmt.Sprintf("%d to %d", from, to)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", span, names[idemhttp.DefaultSettle(from)])
		from = to + 1
	}
	return b.String()
}
