//go:build linux

package faults

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// event is one line of a journal. What is written has happened, whatever becomes of
// the process: a call before it is made, an effect when it takes place, an answer
// after it was received.
type event struct {
	Kind    kind
	T       int64  // nanoseconds of the clock that all processes of the machine share
	ID      string // of the call; unique
	Group   string `json:",omitempty"` // the process and its handle: whose calls may follow one another
	Key     string `json:",omitempty"`
	Way     way    `json:",omitempty"`
	Plan    plan   `json:",omitempty"`
	Attempt int    `json:",omitempty"`
	Fence   int64  `json:",omitempty"`
	Class   class  `json:",omitempty"`
	Value   string `json:",omitempty"`
	Err     string `json:",omitempty"`
	// Planned says that the error needs no fault to explain it: the workload asked for
	// it, or the machine was slow.
	Planned bool `json:",omitempty"`
	// Unresolved says that the key is held until somebody resolves it.
	Unresolved bool `json:",omitempty"`
}

type kind string

const (
	called   kind = "call"
	began    kind = "run"    // fn has begun
	effected kind = "effect" // the effect outside the store took place
	ended    kind = "end"    // fn is about to return
	answered kind = "answer"
)

// way is how an operation is called.
type way string

const (
	do       way = "Do"
	doTx     way = "DoTx"
	doThenTx way = "DoThenTx"
	resolve  way = "Resolve" // by hand; it has no fn
)

// plan is how fn ends.
type plan string

const (
	succeed    plan = "value"
	endFinal   plan = "final"
	fail       plan = "error"       // after the effect
	notApplied plan = "not applied" // before the effect, and only in attempt 1
)

// class is what an answer says.
type class string

const (
	first    class = "first"     // fn ran in this call, and its outcome is recorded
	replayed class = "replay"    // somebody else's outcome
	inFlight class = "in flight" // another call holds the key
	nothing  class = "nothing"   // this call left no outcome
	maybe    class = "maybe"     // this call may have left one
	illegal  class = "illegal"   // an answer that this workload never deserves
)

func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// journal is the record of one process. An event is one write, which survives
// the death of the process.
type journal struct {
	mu sync.Mutex
	f  *os.File
}

func openJournal(name string) (*journal, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{f: f}, err
}

func (j *journal) write(e event) {
	if e.T == 0 {
		e.T = now()
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.f.Write(append(b, '\n')); err != nil {
		panic(err)
	}
}

// callsIn returns how many calls have been made so far, according to the journals
// that match a pattern.
func callsIn(pattern string) (n int) {
	names, _ := filepath.Glob(pattern)
	for _, name := range names {
		text, _ := os.ReadFile(name)
		n += bytes.Count(text, []byte(`"Kind":"call"`))
	}
	return n
}

// readJournals returns the events of every process, by key, in the order of each
// journal. A line that a kill has cut short never counted: what it announces had
// not begun.
func readJournals(t *testing.T, dir string) (byKey map[string][]event, total int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	byKey = make(map[string][]event)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Split(text, []byte("\n"))
		for _, line := range lines[:len(lines)-1] {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%s: %v: %s", name, err, line)
			}
			byKey[e.Key] = append(byKey[e.Key], e)
			if e.Kind == called {
				total++
			}
		}
	}
	return byKey, total
}
