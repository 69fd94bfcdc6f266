package redis

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
)

// masters is implemented by clients of a Cluster.
type masters interface {
	ForEachMaster(ctx context.Context, f func(ctx context.Context, c *goredis.Client) error) error
}

// node is one server that holds records.
type node struct {
	name   string // its address in a Cluster; empty when there is only one
	client goredis.Cmdable
}

func (n node) addr() string {
	if n.name == "" {
		return "the only one"
	}
	return n.name
}

// nodes returns the masters in the order of their names.
func (d *Driver) nodes(ctx context.Context) ([]node, error) {
	cluster, ok := d.client.(masters)
	if !ok {
		return []node{{client: d.client}}, nil
	}
	return await(ctx, func() ([]node, error) {
		var mu sync.Mutex
		var all []node
		err := cluster.ForEachMaster(ctx, func(_ context.Context, c *goredis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node{name: c.Options().Addr, client: c})
			return nil
		})
		if err == nil && len(all) == 0 {
			err = errors.New("the cluster has no masters")
		}
		slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.name, b.name) })
		return all, err
	})
}

// scanned is a key found by SCAN, with the beginning of the record under it.
type scanned struct {
	key  string
	hash driver.KeyHash
	head string
}

// scan reads one page of a node: keys of the form that name gives, each with the
// first bytes of the value under it. Other keys and other types are passed over.
// It takes two round trips and no lock: what it returns may have changed since.
func (d *Driver) scan(ctx context.Context, n node, cursor uint64, count int64, bytes int) (page []scanned, next uint64, err error) {
	type found struct {
		keys []string
		next uint64
	}
	f, err := await(ctx, func() (found, error) {
		keys, next, err := n.client.Scan(ctx, cursor, globEscaper.Replace(d.prefix)+"{*}", count).Result()
		return found{keys, next}, err
	})
	if err != nil {
		return nil, 0, err
	}
	for _, key := range f.keys {
		if h, ok := d.hashOf(key); ok {
			page = append(page, scanned{key: key, hash: h})
		}
	}
	if len(page) == 0 {
		return nil, f.next, nil
	}
	asked := page // await may return before what it started, and page is a result
	heads, err := await(ctx, func() ([]goredis.Cmder, error) {
		heads, err := n.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			for _, s := range asked {
				p.GetRange(ctx, s.key, 0, int64(bytes)-1)
			}
			return nil
		})
		if ofOneCommand(err) {
			err = nil
		}
		return heads, err
	})
	if err != nil {
		return nil, 0, err
	}
	kept := page[:0:0]
	for i, s := range page {
		head, err := heads[i].(*goredis.StringCmd).Result()
		if err != nil && !ofOneCommand(err) {
			return nil, 0, translate(ctx, err)
		}
		if len(head) > 0 {
			s.head = head
			kept = append(kept, s)
		}
	}
	return kept, f.next, nil
}

// ofOneCommand reports whether a pipeline's error concerns one key, which is
// passed over: it holds another type, or its slot is moving to another node.
func ofOneCommand(err error) bool {
	for _, prefix := range [...]string{"WRONGTYPE", "MOVED", "ASK", "TRYAGAIN"} {
		if goredis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// hashOf reverses name.
func (d *Driver) hashOf(key string) (h driver.KeyHash, ok bool) {
	digits, ok := strings.CutPrefix(key, d.prefix+"{")
	digits, closed := strings.CutSuffix(digits, "}")
	if !ok || !closed || len(digits) != hex.EncodedLen(len(h)) {
		return h, false
	}
	_, err := hex.Decode(h[:], []byte(digits))
	return h, err == nil
}
