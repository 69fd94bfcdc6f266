package seed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/internal/pgtest"
)

var rounds = flag.Int("seed.rounds", 1000, "rounds for each driver and number of processes, shared by the ways of calling")

const callers = 64

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// side is one process's half of a round.
type side interface {
	// start makes n calls of the round, and returns when all but those whose fn
	// has begun have been answered.
	start(round, n int) error
	// finish lets fn end, and returns what became of the calls.
	finish() (tally, error)
	close()
}

// tally is what became of the calls of one side. Runs are counted by fn, outside
// the store.
type tally struct {
	Runs, InFlight int
	Values         map[string]int
	Errors         []string
}

func (t *tally) add(u tally) {
	t.Runs += u.Runs
	t.InFlight += u.InFlight
	t.Errors = append(t.Errors, u.Errors...)
	for v, n := range u.Values {
		t.Values[v] += n
	}
}

// The seed test makes 64 equal calls at the same moment, a thousand times on every
// driver in one process, and a thousand times in two. The ways of calling share the
// rounds.
func TestField_C14_Seed(t *testing.T) {
	ways := map[string]int{} // of each driver, with and without Wait
	for _, k := range kinds {
		ways[k.driver] += 2
	}
	for kind, k := range kinds {
		for _, processes := range []int{1, 2} {
			if processes == 2 && k.alone {
				continue
			}
			for _, wait := range []time.Duration{time.Minute, 0} {
				name := fmt.Sprintf("%s-%v/processes=%d/wait=%v", k.driver, k.way, processes, wait > 0)
				t.Run(name, func(t *testing.T) {
					s := spec{Kind: kind, DSN: k.create(t), Wait: wait}
					// Without Wait, fn ends when everybody else has been answered. That
					// cannot be where a duplicate waits for fn's own transaction.
					s.Hold = wait == 0 && !(processes == 2 && k.waitsFor)
					run(t, s, processes, (*rounds+ways[k.driver]-1)/ways[k.driver])
				})
			}
		}
	}
}

func run(t *testing.T, s spec, processes, rounds int) {
	here, err := newLocal(s)
	if err != nil {
		t.Fatal(err)
	}
	sides := []side{here}
	for range processes - 1 {
		sides = append(sides, newRemote(t, s))
	}
	for _, side := range sides {
		defer side.close()
	}
	for round := range rounds {
		var started sync.WaitGroup
		for _, side := range sides {
			started.Go(func() {
				if err := side.start(round, callers/processes); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		started.Wait()
		sum := tally{Values: map[string]int{}}
		for _, side := range sides {
			got, err := side.finish()
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			sum.add(got)
		}
		check(t, s, round, sum)
		if here.count != nil {
			if n, err := here.count(key(round).ID); err != nil || n != 1 {
				t.Errorf("round %d: %d business rows, %v", round, n, err)
			}
		}
		if t.Failed() {
			return
		}
	}
}

func check(t *testing.T, s spec, round int, sum tally) {
	t.Helper()
	if sum.Runs != 1 || len(sum.Values) != 1 || len(sum.Errors) != 0 {
		t.Errorf("round %d: %d runs, values %v, errors %q", round, sum.Runs, sum.Values, sum.Errors)
	}
	results := 0
	for _, n := range sum.Values {
		results += n
	}
	want := callers
	if s.Hold {
		want = 1
	}
	if results+sum.InFlight != callers || (s.Wait > 0 || s.Hold) && results != want {
		t.Errorf("round %d: %d results and %d in flight, want %d results", round, results, sum.InFlight, want)
	}
}

// spec says what a process has to open.
type spec struct {
	Kind int
	DSN  string
	Wait time.Duration
	Hold bool // fn waits for finish
}

func key(round int) idem.Key { return idem.Key{Scope: "seed", ID: fmt.Sprint("round-", round)} }

// local is the half of a round in this process.
type local struct {
	opened
	spec    spec
	release chan struct{}
	calls   sync.WaitGroup
	mu      sync.Mutex
	tally   tally
}

func newLocal(s spec) (*local, error) {
	o, err := kinds[s.Kind].open(s.DSN, s.Wait)
	return &local{opened: o, spec: s}, err
}

func (l *local) start(round, n int) error {
	l.tally = tally{Values: map[string]int{}}
	release := make(chan struct{})
	l.release = release
	if !l.spec.Hold {
		close(release)
	}
	settled := make(chan struct{}, n) // one for each call that was answered or whose fn runs
	var gate sync.WaitGroup
	gate.Add(1)
	for range n {
		l.calls.Go(func() {
			var running atomic.Bool
			gate.Wait()
			value, err := l.call(context.Background(), key(round), func() string {
				running.Store(true)
				l.mu.Lock()
				l.tally.Runs++
				l.mu.Unlock()
				settled <- struct{}{}
				<-release
				return fmt.Sprintf("%d of %d", round, os.Getpid())
			})
			l.mu.Lock()
			switch {
			case err == nil:
				l.tally.Values[value]++
			case errors.Is(err, idem.ErrInFlight):
				l.tally.InFlight++
			default:
				l.tally.Errors = append(l.tally.Errors, err.Error())
			}
			l.mu.Unlock()
			if !running.Load() {
				settled <- struct{}{}
			}
		})
	}
	gate.Done()
	if l.spec.Hold {
		for range n {
			<-settled
		}
	}
	return nil
}

func (l *local) finish() (tally, error) {
	if l.spec.Hold {
		close(l.release)
	}
	l.calls.Wait()
	return l.tally, nil
}

func (l *local) close() { l.opened.close() }

// remote is the half of a round in another process, which is this test binary.
type remote struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

const childEnv = "IDEM_SEED_CHILD"

func newRemote(t *testing.T, s spec) *remote {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(b))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &remote{cmd: cmd, in: in, out: json.NewDecoder(out)}
}

// A child is told "round calls" and answers "true"; then it is told "finish" and
// answers its tally. It ends with its input.
func (r *remote) start(round, n int) error {
	if _, err := fmt.Fprintln(r.in, round, n); err != nil {
		return err
	}
	var started bool
	return r.out.Decode(&started)
}

func (r *remote) finish() (t tally, err error) {
	if _, err := fmt.Fprintln(r.in, "finish"); err != nil {
		return t, err
	}
	err = r.out.Decode(&t)
	return t, err
}

func (r *remote) close() {
	r.in.Close()
	r.cmd.Wait()
}

func child(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	l, err := newLocal(s)
	if err != nil {
		return err
	}
	defer l.close()
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var round, n int
		if _, err := fmt.Fscanln(in, &round, &n); err != nil {
			return nil // the parent has ended, or closed our input
		}
		if err := l.start(round, n); err != nil {
			return err
		}
		if err := out.Encode(true); err != nil {
			return err
		}
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
		t, err := l.finish()
		if err != nil {
			return err
		}
		if err := out.Encode(t); err != nil {
			return err
		}
	}
}
