package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const report = `{"driver":"Zed","config":"b","guarantees":{"Backend":"Zed","DurableClaim":"yes","AtomicWithBusinessData":true,"Clock":"host","Sharing":"any host","TxDuplicate":"in flight, at once","SingleWriter":true,"Failover":"a | b","WhenFull":"fails"}}
{"driver":"Zed","config":"b","rule":"claim/one","promise":"one","status":"pass"}
{"driver":"Zed","config":"b","rule":"claim/two","promise":"two","status":"n/a","reason":"no second"}
{"driver":"Zed","config":"a","rule":"claim/one","promise":"one","status":"skip","reason":"too slow"}
{"driver":"Zed","config":"a","rule":"claim/two","promise":"two","status":"n/a","reason":"no second"}
{"driver":"Zed","config":"a","rule":"tx/one","promise":"together","status":"pass"}
{"driver":"alpha","guarantees":{"Backend":"alpha","DurableClaim":"no","AtomicWithBusinessData":false,"Clock":"server","Sharing":"one process","TxDuplicate":"no transactions","SingleWriter":false,"Failover":"all","WhenFull":"stops"}}
{"driver":"alpha","rule":"claim/one","promise":"one","status":"pass"}
{"driver":"alpha","rule":"claim/two","promise":"two","status":"pass"}
`

const wantTable = `|  | alpha | Zed |
| --- | --- | --- |
| a claim survives a crash of the store | no | yes |
| business rows and outcome commit together | no | yes |
| leases are judged by the clock of | the server | the host |
| one store is shared by | one process | any host |
| a duplicate beside an open transaction gets | no transactions | in flight, at once |
| a transaction keeps other writers waiting | no | yes |
| a failover can lose | all | a \| b |
| when memory or disk is full | stops | fails |
`

// setUp writes a report, and a readme, and returns the arguments that name them.
func setUp(t *testing.T, report, readme string) (args []string, out, readmeFile string) {
	t.Helper()
	dir := t.TempDir()
	name := func(n string) string { return filepath.Join(dir, n) }
	for n, text := range map[string]string{"report": report, "README.md": readme} {
		if err := os.WriteFile(name(n), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"-out", name("out.md"), "-readme", name("README.md"), name("report")}, name("out.md"), name("README.md")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWritesBothFiles(t *testing.T) {
	args, out, readme := setUp(t, report, "above\n"+beginMark+"\nold\n"+endMark+"\nbelow\n")
	var w bytes.Buffer
	if err := run(append([]string{"-check"}, args...), &w); err == nil {
		t.Error("check passed before anything was written")
	}
	if !strings.Contains(w.String(), "+| a failover can lose") && !strings.Contains(w.String(), "+# Guarantees") || !strings.Contains(w.String(), "-old") {
		t.Errorf("the summary shows no difference:\n%s", &w)
	}
	if err := run(args, &w); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, readme), "above\n"+beginMark+"\n"+wantTable+endMark+"\nbelow\n"; got != want {
		t.Errorf("the readme is\n%s\nwant\n%s", got, want)
	}
	doc := read(t, out)
	for _, want := range []string{
		wantTable,
		"* alpha: there is one\n* Zed: a, b\n",
		"### claim\n\n| rule | promise | alpha | Zed |\n| --- | --- | --- | --- |\n| `claim/one` | one | yes | known |\n| `claim/two` | two | yes | n/a |\n",
		"### tx\n\n| rule | promise | alpha | Zed |\n| --- | --- | --- | --- |\n| `tx/one` | together | - | yes |\n",
		"## Not applicable\n\n* Zed: no second (`claim/two`)\n",
		"## Known not to be kept\n\n* Zed: too slow (`claim/one`)\n",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks\n%s\nit is\n%s", want, doc)
		}
	}
	if err := run(append([]string{"-check"}, args...), &w); err != nil {
		t.Errorf("check after writing: %v", err)
	}
}

// The lines of two drivers may come in any order, as their tests run at once.
func TestOrderOfDriversDoesNotMatter(t *testing.T) {
	lines := strings.SplitAfter(report, "\n")
	swapped := strings.Join(append(append([]string{}, lines[6:]...), lines[:6]...), "")
	texts := make(map[string]bool)
	for _, r := range []string{report, swapped} {
		args, out, _ := setUp(t, r, beginMark+endMark)
		if err := run(args, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
		texts[read(t, out)] = true
	}
	if len(texts) != 1 {
		t.Error("the document depends on which driver comes first")
	}
}

func TestRefuses(t *testing.T) {
	marks := beginMark + "\n" + endMark
	for name, c := range map[string]struct{ report, readme, want string }{
		"no marks":         {report, "text", "has no " + beginMark},
		"no end":           {report, beginMark, "has no " + endMark},
		"a failed rule":    {report + `{"driver":"alpha","rule":"claim/one","promise":"one","status":"fail","reason":"broken"}`, marks, "breaks claim/one"},
		"a strange status": {report + `{"driver":"alpha","rule":"claim/one","promise":"one","status":"maybe"}`, marks, `"maybe"`},
		"a strange field":  {report + `{"driver":"alpha","speed":1}`, marks, "speed"},
		"not JSON":         {"{", marks, "report:1"},
		"no driver":        {`{"rule":"claim/one","status":"pass"}`, marks, "without a driver"},
		"two promises":     {report + `{"driver":"alpha","rule":"claim/one","promise":"uno","status":"pass"}`, marks, "two versions"},
		"two statements":   {report + `{"driver":"alpha","config":"c","guarantees":{"Backend":"beta"}}`, marks, "another in"},
		"nothing stated":   {`{"driver":"alpha","rule":"claim/one","promise":"one","status":"pass"}`, marks, "alpha states"},
		"no rules":         {strings.SplitAfter(report, "\n")[0], marks, "no rules"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			args, out, _ := setUp(t, c.report, c.readme)
			err := run(args, &bytes.Buffer{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("the document was written all the same")
			}
		})
	}
	if err := run([]string{"-readme", ""}, &bytes.Buffer{}); err == nil {
		t.Error("ran without a report")
	}
}

func TestWithoutReadme(t *testing.T) {
	args, out, _ := setUp(t, report, "")
	args[3] = ""
	if err := run(args, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(read(t, out), wantTable) {
		t.Error("the document lacks the table")
	}
}
