package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/groupcommit"
)

func goexit() error {
	runtime.Goexit()
	return nil
}

func TestContextEndedBefore(t *testing.T) {
	s := &store{}
	g := groupcommit.New[*tx](s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Do(ctx, write("a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Do: error %v, want context.Canceled", err)
	}
	if _, err := g.Hold(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Hold: error %v, want context.Canceled", err)
	}
	if s.begins.Load() != 0 {
		t.Error("a transaction was opened for a call that had ended")
	}
}

func TestContextEndsInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		release, err := g.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.Do(ctx, write("gone")); !errors.Is(err, context.Canceled) {
				t.Errorf("Do: error %v, want context.Canceled", err)
			}
		})
		wg.Go(func() {
			if _, err := g.Hold(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Hold: error %v, want context.Canceled", err)
			}
		})
		wg.Go(func() {
			if err := g.Do(t.Context(), write("stays")); err != nil {
				t.Errorf("a neighbour in the queue: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		release()
		release() // the second call changes nothing
		wg.Wait()
		wantStored(t, s, "stays")
		wantUsable(t, s, g)
	})
}

func TestContextEndsWhenTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		committing, gate := make(chan struct{}), make(chan struct{})
		s.committing = func() error { close(committing); <-gate; return nil }
		ctx, cancel := context.WithCancel(t.Context())
		release, err := g.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b"} { // one leads, one follows
			wg.Go(func() {
				if err := g.Do(ctx, write(name)); err != nil {
					t.Errorf("%s was committed, and got %v", name, err)
				}
			})
		}
		synctest.Wait()
		release()
		<-committing
		cancel()
		synctest.Wait()
		close(gate)
		wg.Wait()
		wantStored(t, s, "a", "b")
	})
}

func TestLeaderThatGivesUpHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		s.beginning = func(ctx context.Context) error { // somebody else has the store
			if s.begins.Load() > 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		g := groupcommit.New[*tx](s)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.Do(ctx, write("leader")); !errors.Is(err, context.Canceled) {
				t.Errorf("the leader: error %v, want context.Canceled", err)
			}
		})
		synctest.Wait()
		for i := range 3 {
			wg.Go(func() {
				if err := g.Do(t.Context(), write(fmt.Sprint(i))); err != nil {
					t.Errorf("follower %d: %v", i, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		wantStored(t, s, "0", "1", "2")
		wantUsable(t, s, g)
	})
}

func TestHoldKeepsGroupsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		release, err := g.Hold(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- g.Do(t.Context(), write("a")) }()
		synctest.Wait()
		wantStored(t, s)
		release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantStored(t, s, "a")
	})
}

// Every operation is applied once or not at all, as its caller was told.
func TestManyCallers(t *testing.T) {
	s := &store{}
	s.committing = func() error {
		if rand.IntN(20) == 0 {
			return errors.New("down")
		}
		return nil
	}
	g := groupcommit.New[*tx](s)
	var mu sync.Mutex
	want := make(map[string]bool)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 50 {
				name := fmt.Sprintf("%d-%d", i, j)
				ctx, cancel := context.WithCancel(t.Context())
				if j%7 == 0 {
					go cancel()
				}
				err := g.Do(ctx, func(x *tx) (bool, error) {
					x.writes = append(x.writes, name)
					if j%11 == 0 {
						return true, errors.New("boom")
					}
					return true, nil
				})
				cancel()
				mu.Lock()
				want[name] = err == nil
				mu.Unlock()
				if j%13 == 0 {
					if release, err := g.Hold(t.Context()); err == nil {
						release()
					}
				}
			}
		})
	}
	wg.Wait()
	got := make(map[string]int)
	for _, name := range s.stored() {
		got[name]++
	}
	for name, applied := range want {
		if n := got[name]; n > 1 || applied != (n == 1) {
			t.Errorf("operation %s: stored %d times, its caller was told %v", name, n, applied)
		}
	}
	t.Logf("%d operations in %d commits", len(want), s.commits.Load())
}

func TestHeld(t *testing.T) {
	var h groupcommit.Held
	k := driver.Key{Scope: "s", ID: "k"}
	if _, ok := h.Get(k); ok {
		t.Error("an empty set holds a key")
	}
	first := driver.Record{State: driver.StateInFlight, Token: driver.NewToken(), Fingerprint: []byte("one"), Result: []byte("r")}
	if _, ok := h.Enter(k, first); !ok {
		t.Fatal("the first could not enter")
	}
	first.Fingerprint[0] = 'x'
	got, ok := h.Enter(k, driver.Record{Token: driver.NewToken()})
	if ok || got.Token != first.Token || string(got.Fingerprint) != "one" || got.Result != nil {
		t.Errorf("the second entry: %v, %+v; want the record of the first, without its result", ok, got)
	}
	next := driver.Record{State: driver.StateInFlight, Fence: 7}
	h.Update(k, next)
	if got, ok := h.Get(k); !ok || got.Fence != 7 {
		t.Errorf("after Update: %v, %+v", ok, got)
	}
	h.Leave(k)
	h.Update(k, next)
	if _, ok := h.Get(k); ok {
		t.Error("a key that has left is held")
	}
}
