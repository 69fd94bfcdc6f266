package redis

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/idem-go/idem/driver"
)

const (
	// listPages is how many pages one List looks at, at most, before it returns
	// what it has.
	listPages = 64
	// headBytes is enough for everything but the result.
	headBytes = fixedBytes + emptyTexts + 2*driver.MaxScope + driver.MaxOperation +
		driver.MaxSummary + driver.MaxNote + driver.MaxFingerprint
)

// place is where a list goes on. SCAN cannot be told to return fewer keys than
// one bucket of its table holds: last is the key after which the bucket goes on.
type place struct {
	position
	last string
}

// List implements [driver.Lister], in no particular order and without results. It
// looks at a bounded number of keys: a page may hold few records, or none, and
// still not be the last one. A record may be listed twice when it, or the size of
// the store, changes meanwhile; after a failover, or a change of the Cluster's
// nodes, begin again. A record written by a newer version of the driver is
// driver.ErrNewerVersion; what is not a record is passed over.
func (d *Driver) List(ctx context.Context, p driver.ListParams) ([]driver.Record, string, error) {
	if err := p.Validate(); err != nil {
		return nil, "", err
	}
	at, err := parsePlace(p.After)
	if err != nil {
		return nil, "", err
	}
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	if err := d.ensureChecked(ctx); err != nil {
		return nil, "", err
	}
	nodes, err := d.nodes(ctx)
	if err != nil {
		return nil, "", err
	}
	l := lister{d: d, p: p, seen: make(map[driver.KeyHash]bool), pages: listPages}
	for _, n := range nodes {
		if n.name < at.node {
			continue
		}
		if n.name > at.node {
			at = place{position: position{node: n.name}}
		}
		at, more, err := l.node(ctx, n, at)
		if err != nil {
			return nil, "", err
		}
		if more {
			return l.found, at.String(), nil
		}
	}
	return l.found, "", nil
}

// lister collects one page of List.
type lister struct {
	d     *Driver
	p     driver.ListParams
	found []driver.Record
	seen  map[driver.KeyHash]bool // SCAN may return a key twice
	pages int                     // still to be looked at
}

// node collects from one node until the page is full (more is true, and next says
// where to go on) or the node has no more keys.
func (l *lister) node(ctx context.Context, n node, at place) (next place, more bool, err error) {
	now, err := n.clock(ctx, l.p.Now)
	if err != nil {
		return at, false, err
	}
	// The smallest page has the best chance to fit, the largest to find anything.
	count := int64(min(pageSize, l.p.Limit))
	if at.last != "" {
		count = 1 // as in the page that was cut
	}
	for {
		if l.pages == 0 || len(l.found) == l.p.Limit {
			return at, true, nil
		}
		l.pages--
		page, cursor, err := l.d.scan(ctx, n, at.cursor, count, headBytes)
		if err != nil {
			return at, false, err
		}
		slices.SortFunc(page, func(a, b scanned) int { return cmp.Compare(a.key, b.key) })
		var matching []driver.Record
		var keys []string
		for _, s := range page {
			r, err := decode(s.head, s.hash)
			if errors.Is(err, driver.ErrNewerVersion) {
				return at, false, err
			}
			if err != nil || s.key <= at.last || l.seen[s.hash] || !l.d.owns(r, s.hash) || r.StateAt(now) != l.p.State {
				continue
			}
			r.Now, r.Result = now, nil
			matching, keys = append(matching, r), append(keys, s.key)
		}
		if room := l.p.Limit - len(l.found); len(matching) > room {
			switch {
			case len(l.found) > 0:
				return at, true, nil
			case count > 1:
				count /= 2
				continue
			}
			l.found = matching[:room]
			at.last = keys[room-1]
			return at, true, nil
		}
		l.found = append(l.found, matching...)
		for _, s := range page {
			l.seen[s.hash] = true
		}
		if cursor == 0 {
			return place{}, false, nil
		}
		if len(matching) == 0 {
			count = min(pageSize, 2*count)
		}
		at = place{position: position{n.name, cursor}}
	}
}

// owns reports whether a record is of this driver's namespace.
func (d *Driver) owns(r driver.Record, h driver.KeyHash) bool {
	return r.Key == driver.Key{} || r.Key.Hash(d.namespace, d.secret) == h
}

// String returns the cursor that a caller of List passes back.
func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s\n%d\n%s", p.node, p.cursor, p.last))
}

func parsePlace(s string) (place, error) {
	if s == "" {
		return place{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	fields := strings.SplitN(string(b), "\n", 3)
	if err != nil || len(fields) != 3 {
		return place{}, fmt.Errorf("%w: the cursor was not made by List", driver.ErrInvalidParams)
	}
	cursor, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return place{}, fmt.Errorf("%w: the cursor was not made by List", driver.ErrInvalidParams)
	}
	return place{position{fields[0], cursor}, fields[2]}, nil
}
