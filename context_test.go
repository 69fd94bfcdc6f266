package idem

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idem-go/idem/driver"
)

var (
	errParent = errors.New("the caller's cause")
	errLost   = errors.New("lost")
)

type valueKey struct{}

// standIn is a context of context.go, or the one of package context that it stands for.
type standIn struct {
	context.Context
	lose func(error) // nil: it cannot
	stop func()
}

func realFn(parent context.Context) standIn {
	ctx, cancel := context.WithCancelCause(parent)
	return standIn{ctx, cancel, func() { cancel(nil) }}
}

func ourFn(parent context.Context) standIn {
	c := &fnContext{nest: nest{Context: parent, e: &engine{}, key: &driver.Key{}}}
	return standIn{c, c.lose, c.stop}
}

func realSettling(parent context.Context) standIn {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(parent), time.Minute)
	return standIn{ctx, nil, cancel}
}

func ourSettling(parent context.Context) standIn {
	s := detached(parent, time.Now().Add(time.Minute))
	return standIn{s, nil, s.stop}
}

// asking says when a context is asked anything: asking may build it.
type asking int

const (
	atTheEnd   asking = iota // once, when all has happened
	afterSteps               // whatever does not need Done
	atOnce                   // Done is asked for before anything happens
)

// story tells all that can be learnt of a context while it is used in one way.
func story(t *testing.T, make func(context.Context) standIn, when asking, steps []string) string {
	var told string
	synctest.Test(t, func(t *testing.T) {
		base, cancelBase := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "v"), time.Hour)
		defer cancelBase()
		parent, cancel := context.WithCancelCause(base)
		defer cancel(nil)
		c := make(parent)
		defer c.stop()
		var child context.Context
		var after atomic.Bool
		if when == atOnce {
			var done context.CancelFunc
			child, done = context.WithCancel(c)
			defer done()
			defer context.AfterFunc(c, func() { after.Store(true) })()
		}
		for i, step := range append([]string{"begin"}, steps...) {
			switch step {
			case "caller leaves":
				cancel(errParent)
			case "lost":
				c.lose(errLost)
			case "stop":
				c.stop()
			case "a minute":
				time.Sleep(time.Minute)
			case "an hour":
				time.Sleep(time.Hour)
			}
			synctest.Wait()
			if when == atTheEnd && i < len(steps) {
				continue
			}
			told += fmt.Sprintf("%s: err %v, cause %v, value %v", step, c.Err(), context.Cause(c), c.Value(valueKey{}))
			if d, ok := c.Deadline(); ok {
				told += fmt.Sprintf(", %v left", time.Until(d))
			}
			if when == atOnce {
				told += fmt.Sprintf(", child %v for %v, AfterFunc %v", child.Err(), context.Cause(child), after.Load())
			}
			told += "\n"
		}
		late, done := context.WithCancel(c) // what is still made of it
		defer done()
		select {
		case <-c.Done():
			told += fmt.Sprintf("done, for %v", context.Cause(late))
		default:
			told += fmt.Sprintf("not done, %v", late.Err())
		}
		outlives := context.WithoutCancel(c)
		told += fmt.Sprintf("; without it: %v, %v", outlives.Err(), outlives.Value(valueKey{}))
	})
	return told
}

// The contexts built on demand say, whenever they are asked, what those of package
// context say.
func TestContextsAreThoseOfPackageContext(t *testing.T) {
	for name, kind := range map[string]struct {
		real, ours func(context.Context) standIn
		lives      [][]string
	}{
		"fn": {realFn, ourFn, [][]string{
			{}, {"stop"}, {"lost"}, {"lost", "stop"}, {"caller leaves", "stop"}, {"caller leaves", "lost"},
			{"lost", "caller leaves"}, {"stop", "caller leaves"}, {"stop", "an hour"}, {"an hour", "stop"},
		}},
		"settling": {realSettling, ourSettling, [][]string{
			{}, {"stop"}, {"a minute"}, {"a minute", "stop"}, {"caller leaves"}, {"caller leaves", "stop"},
			{"caller leaves", "a minute"}, {"stop", "a minute"},
		}},
	} {
		for _, life := range kind.lives {
			for _, when := range []asking{atTheEnd, afterSteps, atOnce} {
				t.Run(fmt.Sprint(name, life, when), func(t *testing.T) {
					want, got := story(t, kind.real, when, life), story(t, kind.ours, when, life)
					if got != want {
						t.Errorf("ours:\n%s\npackage context:\n%s", got, want)
					}
				})
			}
		}
	}
}

// The cause of a caller who has left is not taken for that of a context which goes on.
func TestSettlingHasNoCauseOfItsCaller(t *testing.T) {
	parent, cancel := context.WithCancelCause(t.Context())
	cancel(errParent)
	s := detached(parent, time.Now().Add(time.Hour))
	defer s.stop()
	if cause := context.Cause(s); cause != nil || s.Err() != nil {
		t.Errorf("error %v, cause %v", s.Err(), cause)
	}
}
