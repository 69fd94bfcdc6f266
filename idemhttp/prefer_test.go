package idemhttp

import (
	"net/http"
	"testing"
	"time"
)

func TestPreferences(t *testing.T) {
	wait := func(d time.Duration) preferences { return preferences{wait: d, hasWait: true} }
	for _, tt := range []struct {
		fields []string
		want   preferences
	}{
		{nil, preferences{}},
		{[]string{""}, preferences{}},
		{[]string{"wait=10"}, wait(10 * time.Second)},
		{[]string{`WAIT = "10"`}, wait(10 * time.Second)},
		{[]string{"wait=0"}, wait(0)},
		{[]string{"wait=10; x=1"}, wait(10 * time.Second)},
		{[]string{"wait=10", "wait=20"}, wait(10 * time.Second)},
		{[]string{"wait=x, wait=20"}, preferences{}}, // the first counts, and is not understood
		{[]string{"return=minimal", "wait=3"}, wait(3 * time.Second)},
		{[]string{"wait=99999999999999999999999"}, wait(maxPreferred * time.Second)},
		{[]string{"wait=-1"}, preferences{}},
		{[]string{"wait=1.5"}, preferences{}},
		{[]string{"wait"}, preferences{}},
		{[]string{`wait=""`}, preferences{}},
		{[]string{"respond-async"}, preferences{async: true}},
		{[]string{`Respond-Async=""`}, preferences{async: true}},
		{[]string{"respond-async=1"}, preferences{}},
		{[]string{"respond-async, wait=2"}, preferences{wait: 2 * time.Second, hasWait: true, async: true}},
		{[]string{`x="a, wait=1"; y=";", wait=2`}, wait(2 * time.Second)},
		{[]string{`x="a\", wait=1", wait=2`}, wait(2 * time.Second)},
		{[]string{`x="never closed, wait=1`}, preferences{}},
	} {
		if got := preferencesIn(http.Header{"Prefer": tt.fields}); got != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.fields, got, tt.want)
		}
	}
}
