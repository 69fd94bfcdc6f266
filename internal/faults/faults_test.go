//go:build linux

package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/proxy"
	"github.com/idem-go/idem/internal/redistest"
)

var (
	count  = flag.Int("faults.count", 120, "faults in all, shared by the drivers")
	seed   = flag.Uint64("faults.seed", 1, "seed of the first segment; each one has the next")
	only   = flag.String("faults.driver", "", "run with this driver only, which gets all of the faults")
	keep   = flag.String("faults.keep", "", "keep the journals of segments that fail in this directory")
	stride = flag.Int("faults.segment", 200, "faults in a segment, after which everything is judged")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if err := worker(text); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func ctx() context.Context { return context.Background() }

// drivers are what is broken, and how.
var drivers = []struct {
	name      string
	kind      string // of the driver
	share     int    // of all faults, in 100
	processes int
	handles   int // in each process
	weights   weights
	start     func(t *testing.T) server
}{
	{"postgres", "postgres", 36, 3, 2, weights{cuts: 70, kill: 42, stop: 15, crash: 8, session: 28, spoil: 7}, func(t *testing.T) server {
		s := postgresServer{startPostgres(t), nil}
		s.p = inFront(t, fmt.Sprintf("127.0.0.1:%d", s.port))
		migrate(t, s.direct())
		return s
	}},
	{"redis", "redis", 36, 3, 2, weights{cuts: 70, kill: 42, stop: 15, crash: 12, session: 24, spoil: 7}, func(t *testing.T) server {
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
		client := goredis.NewClient(&goredis.Options{Addr: s.Addr, PoolSize: 1})
		t.Cleanup(func() { client.Close() })
		return redisServer{s, inFront(t, s.Addr), client}
	}},
	{"sqlite", "sqlite", 7, 3, 2, weights{kill: 85, stop: 15}, onDisk},
	{"sqlite-full", "sqlite", 3, 3, 2, weights{kill: 30, spoil: 70}, onSmallDisk},
	{"sqlite-clock", "sqlite", 4, 3, 2, weights{kill: 20, clock: 80}, onDisk},
	{"bolt", "bolt", 7, 1, 1, weights{kill: 92, stop: 8}, onDisk},
	{"bolt-full", "bolt", 3, 1, 1, weights{kill: 30, spoil: 70}, onSmallDisk},
	{"bolt-clock", "bolt", 4, 1, 1, weights{kill: 20, clock: 80}, onDisk},
}

func onDisk(t *testing.T) server { return file{path: filepath.Join(t.TempDir(), "faults.db")} }

func onSmallDisk(t *testing.T) server {
	d := newSmallDisk(t)
	return file{filepath.Join(d.dir, "faults.db"), d}
}

func inFront(t *testing.T, addr string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestFaults breaks every driver's store and users. Each driver first has a segment
// without faults, in which nothing may go wrong.
func TestFaults(t *testing.T) {
	for _, d := range drivers {
		n := max(*count*d.share/100, 6)
		switch *only {
		case "":
		case d.name:
			n = *count
		default:
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			r := &run{driver: d.name, kind: d.kind, server: d.start(t), processes: d.processes, handles: d.handles, weights: d.weights}
			begin := time.Now()
			if d.name == d.kind {
				r.segment(t, *seed, 0)
			}
			for i := uint64(0); n > 0 && len(r.problems) == 0; i++ {
				r.segment(t, *seed+i, min(n, *stride))
				n -= *stride
			}
			for _, p := range r.problems {
				t.Error(p)
			}
			r.report(t, time.Since(begin))
		})
	}
}

// run is what a driver goes through.
type run struct {
	driver, kind       string
	server             server
	processes, handles int
	weights            weights
	mutant             string

	mu       sync.Mutex
	problems []string // what the segments found

	tally       tally
	calls, keys int
	answers     map[class]int
	overtaken   int // runs of fn as a later attempt
	effects     int // effects beyond the first of their key
}

func (r *run) problem(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// How long a worker may take to end when it is asked to: a call's own limit, what it
// may take to settle after that, and what is then left of its connections.
const patience = 20*time.Second + cleanUp

// quietCalls is the number of calls of a segment without faults.
const quietCalls = 300

// segment injects n faults, lets everybody end, and judges.
func (r *run) segment(t *testing.T, seed uint64, n int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	prefix := fmt.Sprintf("s%d-%d", seed, n)
	slots := make([]*slot, r.processes)
	begin := now()
	for i := range slots {
		slots[i] = &slot{n: i, dir: dir, spec: spec{
			Driver: r.kind, DSN: r.server.dsn(), Prefix: prefix, Seed: seed, Start: begin, Handles: r.handles, Mutant: r.mutant,
			Clock: r.weights.clock > 0,
		}}
		if err := slots[i].start(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, s := range slots {
			s.proc.kill()
		}
	}()
	if n == 0 {
		// As much work on a slow machine as on a fast one.
		if err := within(patience, func() error {
			if made := callsIn(filepath.Join(dir, "*.jsonl")); made < quietCalls {
				return fmt.Errorf("only %d calls in %v", made, patience)
			}
			return nil
		}); err != nil {
			r.problem("%v", err)
		}
	} else {
		r.inject(t, slots, n, rnd)
	}
	for _, s := range slots {
		s.in.Close()
	}
	for _, s := range slots {
		if err := s.finish(patience); err != nil {
			r.problem("worker %d: %v", s.n, err)
		}
	}
	if err := r.server.clean(); err != nil {
		r.problem("%v", err)
	}
	r.judge(t, dir, prefix, n)
	if len(r.problems) == 0 || r.mutant != "" {
		return
	}
	r.problem("again: make faults FAULTS='-faults.driver %s -faults.seed %d -faults.count %d'", r.driver, seed, max(n, 1))
	if *keep != "" {
		if err := os.CopyFS(filepath.Join(*keep, r.driver+"-"+prefix), os.DirFS(dir)); err != nil {
			t.Log(err)
		}
	}
}

// judge asks for the outcome of every key once more, and looks at the histories.
func (r *run) judge(t *testing.T, dir, prefix string, n int) {
	h, err := open(r.kind, r.server.direct())
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	found, _ := readJournals(t, dir)
	r.sweep(t, h, found, dir, prefix)
	found, made := readJournals(t, dir)
	rows, err := h.rows(ctx())
	if err != nil {
		t.Fatal(err)
	}
	r.calls += made
	r.keys += len(found)
	if made == 0 {
		r.problem("nobody called")
	}
	if r.answers == nil {
		r.answers = make(map[class]int)
	}
	bad := 0
	for _, key := range sorted(found) {
		all := calls(found[key])
		sure := lease
		if r.weights.clock > 0 {
			sure = 0 // a lease lasts as long as no clock jumps
		}
		wrong := judge(all, rows[key], sure)
		if n == 0 {
			wrong = append(wrong, judgeQuiet(all)...)
		}
		r.count(all)
		if len(wrong) == 0 {
			continue
		}
		if bad++; bad <= 3 {
			r.problem("key %s:\n  %s\n%s", key, strings.Join(wrong, "\n  "), story(all))
		} else {
			r.problem("key %s:\n  %s", key, strings.Join(wrong, "\n  "))
		}
	}
}

func (r *run) count(all []*call) {
	effects := 0
	for _, c := range all {
		if c.answer == nil {
			r.answers["died"]++
		} else {
			r.answers[c.answer.Class]++
		}
		if len(c.runs) > 0 && c.runs[0].Attempt > 1 {
			r.overtaken++
		}
		if c.effect != nil {
			effects++
		}
	}
	r.effects += max(effects-1, 0)
}

// judgeQuiet looks at the calls of a segment without faults: the store never
// failed, and the only errors are those that the workload asked for, or that come
// from a machine with too much to do (see [event.Planned]).
func judgeQuiet(all []*call) (wrong []string) {
	for _, c := range all {
		switch a := c.answer; {
		case a == nil:
			wrong = append(wrong, fmt.Sprintf("call %s got no answer", c.ID))
		case (a.Class == nothing || a.Class == maybe) && !a.Planned:
			wrong = append(wrong, fmt.Sprintf("call %s failed, and nothing was broken: %s", c.ID, a.Err))
		}
	}
	return wrong
}

func sorted(m map[string][]event) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// sweep calls every key until it hears an outcome: no key is stuck for longer than
// a lease. Its calls are part of the histories.
func (r *run) sweep(t *testing.T, h *handle, found map[string][]event, dir, prefix string) {
	j, err := openJournal(filepath.Join(dir, "sweep.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer j.f.Close()
	limit := time.Now().Add(lease + 10*time.Second)
	keys := make(chan string)
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			for key := range keys {
				for n := 0; ; n++ {
					id := fmt.Sprintf("sweep.%s.%d", key, n)
					s := plannedSteps(j, id, key, do, succeed, rnd)
					j.write(event{Kind: called, ID: id, Group: "sweep/0", Key: key, Way: do, Plan: succeed})
					res, err := h.call(ctx(), do, idem.Key{Scope: "faults", ID: key}, id, s, idem.WaitAtMost(lease))
					e := classify(res, err)
					e.Kind, e.ID, e.Key = answered, id, key
					j.write(e)
					if held(key) && errors.Is(err, idem.ErrUnknown) {
						decide(ctx(), h, j, "sweep/0", fmt.Sprintf("sweep.%s.%d.r", key, n), key, succeed)
					}
					if e.Class == first || e.Class == replayed || e.Class == illegal {
						break
					}
					if time.Now().After(limit) {
						r.problem("key %s is stuck: %v", key, err)
						break
					}
				}
			}
		})
	}
	for key := range found {
		keys <- key
	}
	close(keys)
	work.Wait()
}

func (r *run) report(t *testing.T, took time.Duration) {
	t.Logf("%s: %d faults in %v, %d calls, %d keys", r.driver, r.tally.total(), took.Round(time.Second), r.calls, r.keys)
	var lines []string
	for f, n := range r.tally.n {
		line := fmt.Sprintf("  %6d %s", n, f)
		if verbs := r.tally.verbs[f]; verbs != nil {
			line += ": " + strings.Trim(fmt.Sprint(verbs), "map[]")
		}
		lines = append(lines, line)
	}
	for c, n := range r.answers {
		lines = append(lines, fmt.Sprintf("  %6d calls: %s", n, c))
	}
	sort.Strings(lines)
	t.Logf("\n%s\n  %6d runs took over, %d effects were repeated", strings.Join(lines, "\n"), r.overtaken, r.effects)
}

func migrate(t *testing.T, dsn string) {
	t.Helper()
	pool, err := pgxpool.New(ctx(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.New(pool).Migrate(ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx(), "CREATE TABLE IF NOT EXISTS business (key text, call text)"); err != nil {
		t.Fatal(err)
	}
}
