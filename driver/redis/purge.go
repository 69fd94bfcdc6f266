package redis

import (
	"context"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
)

const (
	// pageSize is the number of keys that one SCAN of Purge looks at.
	pageSize = 500
	// fixedBytes is the length of a stored value up to its first text field, and
	// emptyTexts what six empty ones take: enough to tell when the record is due.
	fixedBytes = len(mark) + 87
	emptyTexts = 6 * 4
)

// position is a place in the keys of all nodes.
type position struct {
	node   string
	cursor uint64 // as SCAN returned it
}

// Purge implements [driver.Driver]. It looks at every key under the prefix, until
// it has met the limit; the next call goes on where this one ended. Redis deletes
// records that are due by itself, so an application needs Purge only where a grace
// follows the retention, to free the memory of results.
func (d *Driver) Purge(ctx context.Context, p driver.PurgeParams) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := d.ensureChecked(ctx); err != nil {
		return 0, err
	}
	nodes, err := d.nodes(ctx)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	from := d.resume
	d.mu.Unlock()

	done := 0
	for _, lap := range laps(nodes, from) {
		n, at, err := d.purgeNode(ctx, lap.node, lap.cursor, p.Limit-done, p.Now)
		done += n
		if err != nil {
			return done, err
		}
		if done == p.Limit {
			d.mu.Lock()
			d.resume = position{lap.node.name, at}
			d.mu.Unlock()
			return done, nil
		}
	}
	return done, nil
}

type lap struct {
	node   node
	cursor uint64
}

// laps goes once round all nodes, beginning in the middle of one, and ends with
// the whole of it.
func laps(nodes []node, from position) []lap {
	i := max(0, slices.IndexFunc(nodes, func(n node) bool { return n.name == from.node }))
	if nodes[i].name != from.node {
		from.cursor = 0
	}
	all := []lap{{nodes[i], from.cursor}}
	for j := 1; j < len(nodes); j++ {
		all = append(all, lap{node: nodes[(i+j)%len(nodes)]})
	}
	if from.cursor != 0 {
		all = append(all, lap{node: nodes[i]})
	}
	return all
}

// purgeNode returns how many records it purged, and the page it was at when it
// met the limit.
func (d *Driver) purgeNode(ctx context.Context, n node, cursor uint64, limit int, given time.Time) (done int, at uint64, err error) {
	now, err := n.clock(ctx, given)
	if err != nil {
		return 0, 0, err
	}
	for {
		page, next, err := d.scan(ctx, n, cursor, pageSize, fixedBytes)
		if err != nil {
			return done, cursor, err
		}
		var due []scanned
		cut := false // the page may hold more
		for _, s := range page {
			if !isDue(s, now) {
				continue
			}
			if cut = len(due) == limit-done; cut {
				break
			}
			due = append(due, s)
		}
		purged, err := d.purgeKeys(ctx, n, due, given)
		done += purged
		if err != nil || done == limit || next == 0 {
			return done, cursor, err
		}
		// Somebody else was faster with a part of what looked due: look again.
		if cut && purged > 0 {
			continue
		}
		cursor = next
	}
}

// isDue judges a record by its fixed fields. The script judges again.
func isDue(s scanned, now time.Time) bool {
	if len(s.head) != fixedBytes {
		return false
	}
	r, err := decode(s.head+string(make([]byte, emptyTexts)), s.hash)
	if err != nil {
		return false
	}
	_, due, _ := r.AfterPurge(now)
	return due
}

// purgeKeys runs the purge script on each key, in one round trip, and returns how
// many records were due.
func (d *Driver) purgeKeys(ctx context.Context, n node, due []scanned, given time.Time) (int, error) {
	done := 0
	pending, err := d.sendPurges(ctx, n, due, given, &done, false)
	if err == nil && len(pending) > 0 {
		// The server did not know the script. Its text goes with every command,
		// as the server may forget it again at any time.
		_, err = d.sendPurges(ctx, n, pending, given, &done, true)
	}
	return done, err
}

func (d *Driver) sendPurges(ctx context.Context, n node, due []scanned, given time.Time, done *int, text bool) (unknown []scanned, err error) {
	if len(due) == 0 {
		return nil, nil
	}
	tags := make([]string, len(due))
	for i, s := range due {
		tags[i] = newTag(s.hash)
	}
	replies, err := await(ctx, func() ([]goredis.Cmder, error) {
		replies, err := n.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for i, s := range due {
				send := purgeScript.EvalSha
				if text {
					send = purgeScript.Eval
				}
				send(ctx, p, []string{s.key}, tags[i], micros(given))
			}
			return nil
		})
		if ofOneCommand(err) || goredis.HasErrorPrefix(err, "NOSCRIPT") {
			err = nil
		}
		return replies, err
	})
	if err != nil {
		return nil, err
	}
	for i, c := range replies {
		v, err := c.(*goredis.Cmd).Result()
		switch {
		case goredis.HasErrorPrefix(err, "NOSCRIPT"):
			unknown = append(unknown, due[i])
			continue
		case ofOneCommand(err):
			continue
		case err != nil:
			return nil, translate(ctx, err)
		}
		a, err := parse(v, tags[i])
		if err != nil {
			return nil, err
		}
		if a.status == statusOK {
			*done++
		}
	}
	return unknown, nil
}
