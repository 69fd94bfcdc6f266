package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/idem-go/idem/internal/groupcommit"
)

// store is a single writer in memory that counts what is asked of it. Its hooks
// run before the step they are named after.
type store struct {
	open                       atomic.Int32
	begins, commits, rollbacks atomic.Int32
	beginning                  func(ctx context.Context) error
	committing                 func() error

	mu   sync.Mutex
	data []string
}

type tx struct{ writes []string }

func (s *store) Begin(ctx context.Context) (*tx, error) {
	s.begins.Add(1)
	if s.beginning != nil {
		if err := s.beginning(ctx); err != nil {
			return nil, err
		}
	}
	if s.open.Add(1) != 1 {
		panic("two transactions at once")
	}
	return &tx{}, nil
}

func (s *store) Commit(t *tx) error {
	defer s.open.Add(-1)
	s.commits.Add(1)
	if s.committing != nil {
		if err := s.committing(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data = append(s.data, t.writes...)
	return nil
}

func (s *store) Rollback(*tx) {
	s.rollbacks.Add(1)
	s.open.Add(-1)
}

// stored returns what is committed, in alphabetical order.
func (s *store) stored() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.data))
}

func write(name string) groupcommit.Op[*tx] {
	return func(t *tx) (bool, error) {
		t.writes = append(t.writes, name)
		return true, nil
	}
}

// queued holds the writer, starts one Do for each op, waits until all are queued
// and lets them go as one group. It returns their errors; a panic of Do is one of
// them. It runs in a synctest bubble.
func queued(t *testing.T, g *groupcommit.Group[*tx], ops ...groupcommit.Op[*tx]) []error {
	t.Helper()
	release, err := g.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(ops))
	var wg sync.WaitGroup
	for i, op := range ops {
		wg.Go(func() {
			errs[i] = errors.New("the goroutine exited")
			defer func() {
				if v := recover(); v != nil {
					errs[i] = fmt.Errorf("panic: %v", v)
				}
			}()
			errs[i] = g.Do(t.Context(), op)
		})
		synctest.Wait() // so that the ops queue in order
	}
	release()
	wg.Wait()
	return errs
}

func wantStored(t *testing.T, s *store, want ...string) {
	t.Helper()
	if got := s.stored(); !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

// wantUsable checks that the slot is free and the store not left in a transaction.
func wantUsable(t *testing.T, s *store, g *groupcommit.Group[*tx]) {
	t.Helper()
	s.beginning, s.committing = nil, nil
	if n := s.open.Load(); n != 0 {
		t.Fatalf("%d transactions are open", n)
	}
	if err := g.Do(t.Context(), write("zz")); err != nil {
		t.Errorf("the next operation: %v", err)
	}
}

func TestOneCommitForTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		for i, err := range queued(t, g, write("a"), write("b"), write("c"), write("d")) {
			if err != nil {
				t.Errorf("operation %d: %v", i, err)
			}
		}
		wantStored(t, s, "a", "b", "c", "d")
		if n := s.commits.Load(); n != 1 {
			t.Errorf("%d commits for four operations, want 1", n)
		}
	})
}

func TestNextGroupGathersDuringACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		gate := make(chan struct{})
		s.committing = func() error { <-gate; return nil }
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if err := g.Do(t.Context(), write(fmt.Sprint(i))); err != nil {
					t.Errorf("operation %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		close(gate)
		wg.Wait()
		if n := s.commits.Load(); n != 2 {
			t.Errorf("%d commits, want 2: the first alone, then the nine that waited", n)
		}
	})
}

func TestReadingIsNotCommitted(t *testing.T) {
	s := &store{}
	g := groupcommit.New[*tx](s)
	if err := g.Do(t.Context(), func(*tx) (bool, error) { return false, nil }); err != nil {
		t.Fatal(err)
	}
	if s.commits.Load() != 0 || s.rollbacks.Load() != 1 {
		t.Errorf("%d commits and %d rollbacks, want 0 and 1", s.commits.Load(), s.rollbacks.Load())
	}
}

func TestErrorsStayWithTheirOperation(t *testing.T) {
	boom := errors.New("boom")
	bad := func(wrote bool) groupcommit.Op[*tx] {
		return func(x *tx) (bool, error) {
			if wrote {
				x.writes = append(x.writes, "half")
			}
			return wrote, boom
		}
	}
	for _, c := range []struct {
		name   string
		op     groupcommit.Op[*tx]
		begins int32 // one more for every operation that has to be undone
		want   string
	}{
		{"before writing", bad(false), 1, "boom"},
		{"after writing", bad(true), 2, "boom"},
		{"panic", func(*tx) (bool, error) { panic("ouch") }, 2, "panic: ouch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &store{}
				g := groupcommit.New[*tx](s)
				for i, err := range queued(t, g, write("a"), c.op, write("b"), c.op, write("c")) {
					switch {
					case i%2 == 0 && err != nil:
						t.Errorf("operation %d, a neighbour: %v", i, err)
					case i%2 == 1 && (err == nil || err.Error() != c.want):
						t.Errorf("operation %d: error %v, want %q", i, err, c.want)
					}
				}
				wantStored(t, s, "a", "b", "c")
				if want := 2*c.begins - 1; s.begins.Load() != want {
					t.Errorf("%d transactions, want %d", s.begins.Load(), want)
				}
				wantUsable(t, s, g)
			})
		})
	}
}

func TestAllOperationsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		bad := func(*tx) (bool, error) { return true, errors.New("boom") }
		for i, err := range queued(t, g, bad, bad) {
			if err == nil || err.Error() != "boom" {
				t.Errorf("operation %d: error %v, want boom", i, err)
			}
		}
		wantStored(t, s)
		wantUsable(t, s, g)
	})
}

func TestStoreErrors(t *testing.T) {
	down := errors.New("down")
	t.Run("begin", func(t *testing.T) {
		s := &store{beginning: func(context.Context) error { return down }}
		g := groupcommit.New[*tx](s)
		if err := g.Do(t.Context(), write("a")); !errors.Is(err, down) {
			t.Errorf("error %v, want the store's", err)
		}
		wantUsable(t, s, g)
	})
	t.Run("begin again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &store{}
			s.beginning = func(context.Context) error {
				if s.begins.Load() > 1 {
					return down
				}
				return nil
			}
			g := groupcommit.New[*tx](s)
			errs := queued(t, g, write("a"), func(*tx) (bool, error) { return true, errors.New("boom") })
			if !errors.Is(errs[0], down) || errs[1] == nil || errs[1].Error() != "boom" {
				t.Errorf("errors %v, want the store's, and its own", errs)
			}
			wantUsable(t, s, g)
		})
	})
	t.Run("commit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &store{committing: func() error { return down }}
			g := groupcommit.New[*tx](s)
			looks := func(*tx) (bool, error) { return false, nil }
			for i, err := range queued(t, g, write("a"), looks, write("b")) {
				if !errors.Is(err, down) {
					t.Errorf("operation %d: error %v, want the store's: it may have seen a neighbour's write", i, err)
				}
			}
			wantStored(t, s)
			wantUsable(t, s, g)
		})
	})
}

func TestStoreThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{committing: func() error { panic("corrupt") }}
		g := groupcommit.New[*tx](s)
		errs := queued(t, g, write("a"), write("b"), write("c"))
		panics, aborted := 0, 0
		for _, err := range errs {
			if errors.Is(err, groupcommit.ErrAborted) {
				aborted++
			} else if err != nil && err.Error() == "panic: corrupt" {
				panics++
			}
		}
		if panics != 1 || aborted != 2 {
			t.Errorf("errors %v, want the panic in the leader and ErrAborted in the others", errs)
		}
		wantUsable(t, s, g)
	})
}

func TestGoexitInAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New[*tx](s)
		exits := 0
		errs := queued(t, g, write("a"), func(*tx) (bool, error) { exits++; return false, goexit() }, write("b"))
		if exits == 0 {
			t.Fatal("the operation did not run")
		}
		aborted := 0
		for _, err := range errs {
			if err == nil {
				t.Errorf("errors %v: an operation of a group that did not commit succeeded", errs)
			}
			if errors.Is(err, groupcommit.ErrAborted) {
				aborted++
			}
		}
		if aborted != 2 {
			t.Errorf("errors %v, want ErrAborted for all but the leader, which exited", errs)
		}
		wantStored(t, s)
		wantUsable(t, s, g)
	})
}

// TryHold takes the writer only when nobody has it or is in line for it.
func TestTryHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New(s)
		release, ok := g.TryHold()
		if !ok {
			t.Fatal("the writer is free")
		}
		if _, ok := g.TryHold(); ok {
			t.Error("two have the writer")
		}
		done := make(chan error)
		go func() { done <- g.Do(t.Context(), write("a")) }()
		synctest.Wait()
		release()
		if _, ok := g.TryHold(); ok {
			t.Error("it went past one in line")
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantStored(t, s, "a")
		release, ok = g.TryHold()
		if !ok {
			t.Fatal("the writer is free again")
		}
		release()
		wantUsable(t, s, g)
	})
}
