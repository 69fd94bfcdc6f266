package groupcommit

import "context"

// run executes the calls in tx, commits, and closes every done channel. A call that
// has to be undone takes the transaction with it, so the others run again in a new one.
func (g *Group[T]) run(ctx context.Context, tx T, calls []*call[T]) {
	open := true
	defer func() { // a panic of the store, or Goexit: nobody may wait for ever
		if open {
			g.store.Rollback(tx)
		}
		finish(calls, ErrAborted)
	}()
	for {
		wrote, bad := g.attempt(tx, calls)
		if bad < 0 {
			open = false
			if !wrote {
				g.store.Rollback(tx)
				calls = done(calls)
				return
			}
			if err := g.store.Commit(tx); err != nil {
				// What any of them saw may be a neighbour's write that is gone now.
				finish(calls, err)
				calls = nil
				return
			}
			calls = done(calls)
			return
		}
		open = false
		g.store.Rollback(tx)
		done(calls[bad : bad+1])
		calls = append(calls[:bad:bad], calls[bad+1:]...)
		if len(calls) == 0 {
			return
		}
		next, err := g.store.Begin(ctx)
		if err != nil {
			finish(calls, err)
			calls = nil
			return
		}
		tx, open = next, true
	}
}

// attempt runs every call once. It stops at the first that has to be undone, and
// returns its index, or -1.
func (g *Group[T]) attempt(tx T, calls []*call[T]) (wrote bool, bad int) {
	for i, c := range calls {
		w, ok := c.run(tx)
		if c.panicked || w && !ok {
			return wrote, i
		}
		wrote = wrote || w
	}
	return wrote, -1
}

func (c *call[T]) run(tx T) (wrote, ok bool) {
	c.err, c.panicked = nil, true
	defer func() {
		if c.panicked {
			c.value = recover()
		}
	}()
	wrote, c.err = c.op(tx)
	c.panicked = false
	return wrote, c.err == nil
}

// done tells the callers that their results are there.
func done[T any](calls []*call[T]) []*call[T] {
	for _, c := range calls {
		close(c.done)
	}
	return nil
}

// finish gives every caller err.
func finish[T any](calls []*call[T], err error) {
	for _, c := range calls {
		c.err, c.panicked = err, false
		close(c.done)
	}
}
