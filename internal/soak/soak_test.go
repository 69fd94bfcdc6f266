package soak

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/driver/bolt"
	"github.com/idem-go/idem/driver/memory"
	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/driver/redis"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/fingerprint"
	"github.com/idem-go/idem/internal/pgtest"
	"github.com/idem-go/idem/internal/redistest"
)

// Short by default, so that the test itself is tested; make soak asks for more.
var (
	keysFlag = flag.Int("soak.keys", 500, "records in the store before the load begins")
	forFlag  = flag.Duration("soak.for", time.Second, "how long each store is loaded")
)

const workers = 16

// mostInMemory is for the driver in memory, which is for tests: its Purge looks at every record.
const mostInMemory = 10_000

// stores are opened one after another, each for its own test.
var stores = map[string]func(*testing.T) driver.Driver{
	"memory": func(*testing.T) driver.Driver { return memory.New() },
	"bolt": func(t *testing.T) driver.Driver {
		d, err := bolt.Open(filepath.Join(t.TempDir(), "soak.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	},
	"sqlite": func(t *testing.T) driver.Driver {
		d, err := sqlite.Open(filepath.Join(t.TempDir(), "soak.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	},
	"postgres": func(t *testing.T) driver.Driver {
		d := postgres.New(pgtest.Pool(t))
		if err := d.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return d
	},
	"redis": func(t *testing.T) driver.Driver {
		prefix := redis.WithPrefix("soak:" + driver.NewToken().String() + ":")
		return redis.New(redistest.Client(t, redistest.Addr(t)), prefix)
	},
}

// Claims, replays and a purge, side by side in a store of many records, for as long as
// asked: no call fails, a replay is the outcome, what is due is purged, and in the second
// half of the time neither memory nor goroutines are more than in the first.
func TestSoak(t *testing.T) {
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			drv := open(t)
			keys := *keysFlag
			if name == "memory" {
				keys = min(keys, mostInMemory)
			}
			fill(t, drv, keys)
			before := runtime.NumGoroutine()
			op, err := idem.New[string](drv, idem.Config{Name: "soak", Lease: 5 * time.Second, Retention: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			end := time.Now().Add(*forFlag)
			var calls, purged atomic.Int64
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for i := 0; time.Now().Before(end); i++ {
						v := fmt.Sprintf("%d-%d", w, i)
						k := idem.Key{Scope: "soak", ID: v}
						for range 2 {
							res, err := op.Do(ctx, k, fingerprint.None(), func(context.Context, *idem.Run) (string, error) { return v, nil })
							if err != nil || res.Value != v {
								t.Errorf("%s: %q, %v", v, res.Value, err)
								return
							}
							calls.Add(1)
						}
					}
				})
			}
			var purger sync.WaitGroup
			purger.Go(func() {
				for ctx.Err() == nil {
					n, err := op.Purge(ctx, 1000)
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Errorf("Purge: %v", err)
						return
					}
					purged.Add(int64(n))
					if n == 0 {
						time.Sleep(2 * time.Millisecond) // nothing is due: let it become
					}
				}
			})
			samples := watch(end)
			wg.Wait()
			cancel()
			purger.Wait()
			if len(samples) < 4 {
				t.Logf("%d samples are too few to judge by", len(samples))
				return
			}
			first, second := peak(samples[:len(samples)/2]), peak(samples[len(samples)/2:])
			t.Logf("%d records, %v: %d calls, %d purged; in the halves at most %d and %d KiB of heap, %d and %d goroutines",
				keys, *forFlag, calls.Load(), purged.Load(), first.heap>>10, second.heap>>10, first.goroutines, second.goroutines)
			if second.heap > first.heap+first.heap/4+8<<20 {
				t.Errorf("the heap grew from %d to %d KiB", first.heap>>10, second.heap>>10)
			}
			if second.goroutines > first.goroutines+2*workers {
				t.Errorf("goroutines grew from %d to %d", first.goroutines, second.goroutines)
			}
			if purged.Load() < int64(keys)/2 && *forFlag > time.Minute {
				t.Errorf("%d records were purged, want the half of %d that was due", purged.Load(), keys)
			}
			settle(t, before+workers) // connections that the client opened under load stay
		})
	}
}

// fill stores records, every second of which is due at once.
func fill(t *testing.T, drv driver.Driver, n int) {
	t.Helper()
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 4 * workers {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				p := driver.ClaimParams{
					Key: driver.Key{Scope: "fill", ID: fmt.Sprint(i)}, Operation: "fill", Fingerprint: []byte("f"), Token: driver.NewToken(),
					Lease: time.Millisecond, Retention: 24 * time.Hour,
				}
				if i%2 == 0 {
					p.Retention = time.Millisecond
				}
				if _, err := drv.Claim(t.Context(), p); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d records in %v", n, time.Since(began).Round(time.Millisecond))
}

type sample struct {
	heap       uint64
	goroutines int
}

// watch measures until end: memory after a collection, so that it is what is in use.
func watch(end time.Time) (samples []sample) {
	pause := max(time.Until(end)/40, time.Millisecond)
	for time.Now().Before(end) {
		time.Sleep(pause)
		n := runtime.NumGoroutine()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		samples = append(samples, sample{m.HeapAlloc, n})
	}
	return samples
}

// peak leaves out the highest tenth, in which a measurement fell into a burst.
func peak(all []sample) (p sample) {
	if len(all) == 0 {
		return p
	}
	at := (len(all) - 1) * 9 / 10
	p.heap = slices.SortedFunc(slices.Values(all), func(a, b sample) int { return cmp.Compare(a.heap, b.heap) })[at].heap
	p.goroutines = slices.SortedFunc(slices.Values(all), func(a, b sample) int { return cmp.Compare(a.goroutines, b.goroutines) })[at].goroutines
	return p
}
