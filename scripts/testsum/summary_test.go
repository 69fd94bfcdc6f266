package main

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

const passing = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"chatter of a passing test\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.5}
{"Action":"pass","Package":"p","Elapsed":1}
`

const failing = `{"Action":"output","Package":"q","Test":"TestB","Output":"b_test.go:7: the reason\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t1.0s\n"}
{"Action":"fail","Package":"q"}
`

const skipping = `{"Action":"output","Package":"r","Test":"TestC","Output":"    c_test.go:3: no server\n"}
{"Action":"skip","Package":"r","Test":"TestC"}
{"Action":"pass","Package":"r"}
`

const unbuilt = `{"Action":"build-output","ImportPath":"s","Output":"s.go:1:1: syntax error\n"}
{"Action":"build-fail","ImportPath":"s"}
{"Action":"fail","Package":"s"}
`

const cut = `{"Action":"output","Package":"u","Test":"TestD","Output":"last words\n"}
`

func TestSummary(t *testing.T) {
	for _, tt := range []struct {
		name, stream   string
		noskip, failed bool
		ok             bool
		want, wantNot  string
	}{
		{name: "pass", stream: passing, noskip: true, ok: true, want: "ok  \tp\t1.000s\t1 tests", wantNot: "chatter"},
		{name: "a failing test's output is shown", stream: passing + failing, want: "b_test.go:7: the reason"},
		{name: "go's own FAIL line is shown", stream: failing, want: "FAIL\tq\t1.0s"},
		{name: "skips are named", stream: passing + skipping, ok: true, want: "skipped: r.TestC: c_test.go:3: no server"},
		{name: "skips fail", stream: passing + skipping, noskip: true, want: "FAIL: 2 packages, 2 tests"},
		{name: "build failure", stream: passing + unbuilt, want: "s.go:1:1: syntax error"},
		{name: "stream ends early", stream: passing + cut, want: "last words"},
		{name: "go test failed", stream: passing, failed: true, want: "FAIL: 1 packages"},
		{name: "no test ran", stream: `{"Action":"skip","Package":"p"}` + "\n", want: "[no test files]"},
		{name: "text that is no event", stream: "go: some trouble\n" + passing, ok: true, want: "go: some trouble"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			s := newSummary(&out, false)
			if err := s.read(strings.NewReader(tt.stream)); err != nil {
				t.Fatal(err)
			}
			if ok := s.finish(time.Second, tt.noskip, tt.failed); ok != tt.ok {
				t.Errorf("finish = %v, want %v", ok, tt.ok)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("output lacks %q:\n%s", tt.want, &out)
			}
			if tt.wantNot != "" && strings.Contains(out.String(), tt.wantNot) {
				t.Errorf("output has %q:\n%s", tt.wantNot, &out)
			}
		})
	}
}

func TestGroups(t *testing.T) {
	got := groups([]string{"--", "-race", "./a", "--", "./b"})
	if want := [][]string{{"-race", "./a"}, {"./b"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("groups = %q, want %q", got, want)
	}
}

func TestCommand(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"-race", "./a"}, []string{"test", "-json", "-race", "./a"}},
		{[]string{"-C", "sub", "./a"}, []string{"test", "-C", "sub", "-json", "./a"}},
	} {
		if got := command(c.args); !reflect.DeepEqual(got, c.want) {
			t.Errorf("command(%q) = %q, want %q", c.args, got, c.want)
		}
	}
}
