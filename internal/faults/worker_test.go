//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/idem-go/idem"
)

const workerEnv = "IDEM_FAULTS_WORKER"

// spec is what a worker process is told.
type spec struct {
	Driver, DSN, Journal string
	Name                 string // of the process; in the IDs of its calls
	Prefix               string // of the keys
	Seed                 uint64
	Start                int64 // of the segment, by the clock of all processes
	Handles              int
	Mutant               string // see [mutant]
	Clock                bool   // jumps as the input says
}

// Keys come into use one every keyEvery and are new for a window of keyWindow keys.
const (
	keyEvery    = 25 * time.Millisecond
	keyWindow   = 8
	callers     = 5  // for each handle
	mostRepeats = 60 // of one client that hears no outcome
)

// cleanUp is how long a client library may be busy with a connection after the call
// has ended that broke it: pgx waits 15 s for the server to hear of a cancelled
// query, when the network swallows that message.
const cleanUp = 17 * time.Second

// worker is a process that calls until its input ends, and then must hold nothing.
func worker(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	j, err := openJournal(s.Journal)
	if err != nil {
		return err
	}
	mutant, skewing = s.Mutant, s.Clock
	before := runtime.NumGoroutine()
	var handles []*handle
	for range s.Handles {
		h, err := open(s.Driver, s.DSN)
		if err != nil {
			return err
		}
		handles = append(handles, h)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var work sync.WaitGroup
	for i, h := range handles {
		for n := range callers {
			c := &caller{
				spec: s, h: h, j: j, rnd: rand.New(rand.NewPCG(s.Seed, uint64(i*callers+n))),
				group: fmt.Sprintf("%s/%d", s.Name, i), name: fmt.Sprintf("%s.%d", s.Name, i*callers+n),
			}
			work.Go(func() { c.loop(ctx) })
		}
	}
	work.Go(func() {
		for ctx.Err() == nil {
			_ = handles[0].purge(ctx) // a purge that fails is made again
			sleep(ctx, 100*time.Millisecond)
		}
	})
	follow(os.Stdin)
	stop()
	work.Wait()
	for _, h := range handles {
		if err := within(cleanUp, h.leak); err != nil {
			pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			return err
		}
		h.close()
	}
	// Those of the runtime and of database/sql end a moment after they are told to.
	err = within(5*time.Second, func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d goroutines are left, and there were %d", n, before)
		}
		return nil
	})
	if err != nil {
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
	}
	return err
}

// within calls f until it returns nil, and returns its last error.
func within(limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// caller is one client, who repeats a call until he hears its outcome.
type caller struct {
	spec
	h           *handle
	j           *journal
	rnd         *rand.Rand
	group, name string
	made        int
}

func (c *caller) loop(ctx context.Context) {
	for ctx.Err() == nil {
		newest := int((now() - c.Start) / int64(keyEvery))
		key := keyName(c.Prefix, max(newest-c.rnd.IntN(keyWindow), 0))
		for n := 0; n < mostRepeats && ctx.Err() == nil; n++ {
			e := c.once(ctx, key)
			if e.Class == first || e.Class == replayed || e.Class == illegal {
				break
			}
			if held(key) && e.Unresolved && c.rnd.IntN(4) == 0 {
				c.made++
				p := [...]plan{succeed, notApplied}[c.rnd.IntN(2)]
				decide(context.WithoutCancel(ctx), c.h, c.j, c.group, fmt.Sprintf("%s.%d", c.name, c.made), key, p)
			}
			sleep(ctx, time.Duration(2+c.rnd.IntN(20))*time.Millisecond)
		}
		sleep(ctx, time.Duration(c.rnd.IntN(30))*time.Millisecond)
	}
}

// Every fifth key is used under policy Hold, and its name says so.
func keyName(prefix string, n int) string {
	if n%5 == 0 {
		return fmt.Sprintf("%s-%d-hold", prefix, n)
	}
	return fmt.Sprintf("%s-%d", prefix, n)
}

func held(key string) bool { return strings.HasSuffix(key, "-hold") }

// decide is a person who resolves a key whose outcome is unknown.
func decide(ctx context.Context, h *handle, j *journal, group, id, key string, p plan) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	j.write(event{Kind: called, ID: id, Group: group, Key: key, Way: resolve, Plan: p})
	value, err := string(resolve)+"/"+id, error(nil)
	if p == notApplied {
		value, err = "", idem.NotApplied(errPlanned)
	}
	e := event{Kind: answered, ID: id, Key: key, Class: maybe, Planned: true}
	err = h.resolve(ctx, idem.Key{Scope: "faults", ID: key}, value, err)
	switch {
	case err == nil && p == succeed:
		e.Class, e.Value = first, value
	case err == nil, errors.Is(err, idem.ErrInFlight), errors.Is(err, idem.ErrHasOutcome), errors.Is(err, idem.ErrNotFound):
		e.Class = nothing
	}
	if err != nil {
		e.Err = err.Error()
	}
	j.write(e)
}

var errPlanned = errors.New("planned by the workload")

// once makes one call, writes down what it was told, and returns that.
func (c *caller) once(base context.Context, key string) event {
	c.made++
	id := fmt.Sprintf("%s.%d", c.name, c.made)
	w := c.h.ways[c.rnd.IntN(len(c.h.ways))]
	p := []plan{fail, notApplied, endFinal, succeed}[min(c.rnd.IntN(20), 3)]
	if mutant == "does not hold" && c.rnd.IntN(2) == 0 {
		p = fail // so that every segment has keys to hold
	}
	limit := 4 * time.Second
	if c.rnd.IntN(12) == 0 {
		limit = time.Duration(1+c.rnd.IntN(40)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(base), limit)
	defer cancel()
	var opts []idem.CallOption
	if c.rnd.IntN(2) == 0 {
		opts = append(opts, idem.WaitAtMost(300*time.Millisecond))
	}
	s := plannedSteps(c.j, id, key, w, p, c.rnd)
	c.j.write(event{Kind: called, ID: id, Group: c.group, Key: key, Way: w, Plan: p})
	res, err := c.h.call(ctx, w, idem.Key{Scope: "faults", ID: key}, id, s, opts...)
	e := classify(res, err)
	e.Kind, e.ID, e.Key = answered, id, key
	e.Planned = e.Planned || ctx.Err() != nil
	c.j.write(e)
	return e
}

func plannedSteps(j *journal, id, key string, w way, p plan, rnd *rand.Rand) steps {
	pauses := [3]time.Duration{}
	for i := range pauses {
		pauses[i] = time.Duration(rnd.IntN(8)) * time.Millisecond
	}
	if rnd.IntN(150) == 0 && w != doTx { // longer than a lease, which has to be renewed
		pauses[0] = lease + lease/4
	}
	late := rnd.IntN(2) == 0 // DoThenTx ends in then
	value := string(w) + "/" + id
	final := idem.Final(errors.New("final/" + value))
	end := func() { j.write(event{Kind: ended, ID: id, Key: key}) }
	return steps{
		fn: func(ctx context.Context, run *idem.Run) (string, error) {
			j.write(event{Kind: began, ID: id, Key: key, Attempt: run.Attempt, Fence: run.Fence})
			defer end()
			sleep(ctx, pauses[0])
			if ctx.Err() != nil {
				return "", fmt.Errorf("%w: %w", errPlanned, context.Cause(ctx))
			}
			if p == notApplied && run.Attempt == 1 {
				return "", idem.NotApplied(errPlanned)
			}
			j.write(event{Kind: effected, ID: id, Key: key, Attempt: run.Attempt, Fence: run.Fence})
			time.Sleep(pauses[1])
			switch {
			case w == doThenTx && late:
				return value, nil
			case p == endFinal:
				return "", final
			case p == fail:
				return "", errPlanned
			}
			return value, nil
		},
		then: func(ctx context.Context, v string, insert func(context.Context) error) (string, error) {
			if err := insert(ctx); err != nil {
				return "", err
			}
			time.Sleep(pauses[2])
			switch {
			case late && p == endFinal:
				return "", final
			case late && p == fail:
				return "", errPlanned
			}
			return v, nil
		},
		tx: func(ctx context.Context, insert func(context.Context) error) (string, error) {
			j.write(event{Kind: began, ID: id, Key: key})
			defer end()
			time.Sleep(pauses[0])
			if err := insert(ctx); err != nil {
				return "", err
			}
			time.Sleep(pauses[1])
			switch p {
			case endFinal:
				return "", final
			case notApplied:
				return "", idem.NotApplied(errPlanned)
			case fail:
				return "", errPlanned
			}
			return value, nil
		},
	}
}

// classify says what an answer means for the state of the key.
func classify(res idem.Result[string], err error) event {
	e := event{Class: nothing}
	if err != nil {
		e.Err = err.Error()
	}
	for _, expected := range [...]error{errPlanned, idem.ErrLeaseLost, idem.ErrRetryable, context.DeadlineExceeded} {
		e.Planned = e.Planned || errors.Is(err, expected)
	}
	var slow net.Error
	e.Planned = e.Planned || errors.As(err, &slow) && slow.Timeout()
	var final *idem.FinalError
	switch {
	case errors.Is(err, idem.ErrNotRecorded) && errors.Is(err, idem.ErrLeaseLost):
	case errors.Is(err, idem.ErrNotRecorded), errors.Is(err, idem.ErrUnknown):
		e.Class = maybe
		var u *idem.UnknownError
		e.Unresolved = errors.As(err, &u) && u.Err == nil
		e.Planned = e.Planned || e.Unresolved
	case err == nil, errors.As(err, &final):
		e.Class = first
		if res.Replayed {
			e.Class = replayed
		}
		e.Value, e.Err = res.Value, ""
		if final != nil {
			e.Value = final.Error()
		}
	case errors.Is(err, idem.ErrInFlight):
		e.Class = inFlight
	case errors.Is(err, idem.ErrMismatch), errors.Is(err, idem.ErrExpired), errors.Is(err, idem.ErrResultNotStored),
		errors.Is(err, idem.ErrUnreadableResult), errors.Is(err, idem.ErrNewerVersion),
		errors.Is(err, idem.ErrNested), errors.Is(err, idem.ErrInvalidKey), errors.Is(err, idem.ErrInvalidArgument):
		e.Class = illegal
	}
	return e
}
