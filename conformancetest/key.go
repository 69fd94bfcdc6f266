package conformancetest

import (
	"context"
	"fmt"
	"strings"

	"github.com/idem-go/idem/driver"
)

// keptApart claims every key, all of which differ, and checks that each holds
// its own record afterwards.
func keptApart(ctx context.Context, e *env, keys []driver.Key) error {
	tokens := make(map[driver.Key]driver.Token, len(keys))
	for _, k := range keys {
		if _, twice := tokens[k]; twice {
			return fmt.Errorf("the rule names %q twice", k)
		}
		p := e.claim(k, t0)
		if _, err := grant(ctx, e.d, p); err != nil {
			return fmt.Errorf("%q: %w", k, err)
		}
		tokens[k] = p.Token
	}
	for k, token := range tokens {
		r, err := e.get(ctx, k, t0)
		if err != nil {
			return err
		}
		if r.Token != token {
			return fmt.Errorf("%q holds the record of another key: %s", k, show(r))
		}
	}
	return nil
}

// variants returns keys of the rule's scope with these IDs.
func (e *env) variants(ids ...string) []driver.Key {
	keys := make([]driver.Key, len(ids))
	for i, id := range ids {
		keys[i] = driver.Key{Scope: e.scope, ID: id}
	}
	return keys
}

var keyRules = []rule{
	{
		id:      "key/scope",
		promise: "the same ID in another scope is another key",
		check: func(ctx context.Context, e *env) error {
			return keptApart(ctx, e, []driver.Key{
				{Scope: e.scope + " one", ID: "id"}, {Scope: e.scope + " two", ID: "id"}, {Scope: e.scope, ID: "id"},
			})
		},
	},
	{
		id:      "key/no-collision",
		promise: "scope and ID never collide by concatenation, whatever stands between them",
		check: func(ctx context.Context, e *env) error {
			var keys []driver.Key
			for _, sep := range []string{"x", ":", "/", "|", ",", "{", "}", "\\", "-", "_", "\"", "'", " "} {
				s := e.scope + " " + sep
				keys = append(keys,
					driver.Key{Scope: s + "a" + sep, ID: "b"},
					driver.Key{Scope: s + "a", ID: sep + "b"},
					driver.Key{Scope: s, ID: "a" + sep + "b"},
				)
			}
			return keptApart(ctx, e, keys)
		},
	},
	{
		id:      "key/case",
		promise: "keys are case-sensitive",
		check: func(ctx context.Context, e *env) error {
			return keptApart(ctx, e, append(e.variants("order", "Order", "ORDER"), driver.Key{Scope: strings.ToUpper(e.scope), ID: "order"}))
		},
	},
	{
		id:      "key/spaces",
		promise: "spaces before, in and after a key count",
		check: func(ctx context.Context, e *env) error {
			keys := e.variants("a", "a ", " a", "a  ", "a b", "a  b")
			return keptApart(ctx, e, append(keys, driver.Key{Scope: e.scope + " ", ID: "a"}, driver.Key{Scope: " " + e.scope, ID: "a"}))
		},
	},
	{
		id:      "key/printable",
		promise: "every printable ASCII byte may stand in a key, and counts",
		check: func(ctx context.Context, e *env) error {
			var keys []driver.Key
			for c := byte('!'); c <= '~'; c++ {
				keys = append(keys, driver.Key{Scope: e.scope, ID: string(c)}, driver.Key{Scope: e.scope + string(c), ID: "id" + string(c)})
			}
			return keptApart(ctx, e, keys)
		},
	},
	{
		id:      "key/looks-alike",
		promise: "keys are text: not numbers, patterns, escapes or hash tags",
		check: func(ctx context.Context, e *env) error {
			return keptApart(ctx, e, e.variants(
				"1", "01", "1.0", "1e0", "0x1", "+1", "NULL", "null", "nil", "*", "?", "%", "_", "[a-z]", "a{b}c", "{b}", "{}", "}{",
				`\`, `\\`, `\n`, `\x00`, "%00", "'; --", `"`, `""`, "$1", "?1", ":a", "@a", "../a", "a/../a",
			))
		},
	},
	// Field case P21.
	{
		id:      "key/longest",
		promise: "a scope and an ID of 255 bytes each are stored, and compared to the last byte",
		check: func(ctx context.Context, e *env) error {
			scope := e.scope + strings.Repeat("s", driver.MaxScope-len(e.scope)-1)
			id := strings.Repeat("i", driver.MaxID-1)
			return keptApart(ctx, e, []driver.Key{
				{Scope: scope + "1", ID: id + "1"}, {Scope: scope + "1", ID: id + "2"}, {Scope: scope + "2", ID: id + "1"},
				{Scope: scope + "1", ID: id},
			})
		},
	},
}
