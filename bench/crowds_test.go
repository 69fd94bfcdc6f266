package bench

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/idem-go/idem/internal/redistest"
)

// named is something of openers under the name that the tables give it.
type named struct{ name, kind, where string }

// stores are the places that peers and crowds share.
type stores struct{ dsn, addr, lite, bolt string }

func newStores(tb testing.TB) stores {
	dir := tb.TempDir()
	s := stores{newDatabase(tb).DSN(), redistest.Start(tb).Addr, filepath.Join(dir, "crowd.db"), filepath.Join(dir, "crowd.bolt")}
	if _, err := liteFile(tb, s.lite).DB().ExecContext(tb.Context(), liteSchema); err != nil {
		tb.Fatal(err)
	}
	return s
}

// crowds are the duplicates of one process, and of several.
func crowds(tb testing.TB, s stores) (near, far []*crowd) {
	for _, c := range []named{
		{"idem Do, memory", "memory", ""},
		{"idem Do, PostgreSQL", "postgres", s.dsn},
		{"idem DoTx, PostgreSQL", "postgres-tx", s.dsn},
		{"idem Do, SQLite", "sqlite", s.lite},
		{"idem DoTx, SQLite", "sqlite-tx", s.lite},
		{"idem DoTx, bbolt", "bolt", s.bolt},
		{"idem Do, Redis", "redis", s.addr},
		{"fiber, memory", "fiber-memory", ""},
		{"fiber, Redis", "fiber-redis", s.addr},
		{"redislock and a stored result, Redis", "redislock", s.addr},
		{"dbos workflow, PostgreSQL", "dbos", s.dsn},
		{"dbos workflow, polling every 5 ms, PostgreSQL", "dbos-5ms", s.dsn},
		{"dbos RunAsTransaction, polling every 5 ms, PostgreSQL", "dbos-tx-5ms", s.dsn},
		{"river, PostgreSQL", "river", s.dsn},
	} {
		near = append(near, here(tb, c.name, c.kind, c.where))
	}
	for _, c := range []named{
		{"idem Do, PostgreSQL", "postgres", s.dsn},
		{"idem DoTx, PostgreSQL", "postgres-tx", s.dsn},
		{"idem Do, SQLite", "sqlite", s.lite},
		{"idem DoTx, SQLite", "sqlite-tx", s.lite},
		{"idem Do, Redis", "redis", s.addr},
		{"fiber, Redis", "fiber-redis", s.addr},
		{"redislock and a stored result, Redis", "redislock", s.addr},
	} {
		far = append(far, apart(tb, c.name, c.kind, c.where))
	}
	return near, far
}

// grounds are the peers, each beside what idem offers on its ground.
func grounds(s stores) []struct {
	id, title string
	members   []named
} {
	return []struct {
		id, title string
		members   []named
	}{
		{"peer-http-memory", "HTTP, in memory", []named{
			{"idemhttp", "idemhttp-memory", ""}, {"fiber", "fiber-memory", ""}}},
		{"peer-http-redis", "HTTP, Redis", []named{
			{"idemhttp", "idemhttp-redis", s.addr}, {"fiber", "fiber-redis", s.addr}}},
		{"peer-redis", "a function, Redis", []named{
			{do, "redis", s.addr}, {"redislock and a stored result", "redislock", s.addr}}},
		{"peer-tx", "a transaction, PostgreSQL", []named{
			{doTx, "postgres-tx", s.dsn}, {"dbos RunAsTransaction", "dbos-tx", s.dsn},
			{"dbos RunAsTransaction, polling every 5 ms", "dbos-tx-5ms", s.dsn}}},
		{"peer-pg", "a function, PostgreSQL", []named{
			{do, "postgres", s.dsn}, {"dbos workflow", "dbos", s.dsn},
			{"dbos workflow, polling every 5 ms", "dbos-5ms", s.dsn}, {"river", "river", s.dsn}}},
	}
}

// peerTables have idem as their floor.
func peerTables(tb testing.TB, s stores) (all []*table) {
	for _, g := range grounds(s) {
		first := &table{id: g.id + "-first", title: g.title + ", first run, one caller", callers: 1}
		replay := &table{id: g.id + "-replay", title: g.title + ", replay, one caller", callers: 1}
		for _, m := range g.members {
			grow := func() func(context.Context, string) error {
				w := openers[m.kind](tb, m.where)
				return func(ctx context.Context, id string) error { return w(ctx, id, nil) }
			}
			if m.where == "" {
				first.subjects = append(first.subjects, renewed(m.name, grow))
			} else {
				first.subjects = append(first.subjects, subject{name: m.name, call: grow()})
			}
			call := first.subjects[len(first.subjects)-1].call
			if m.where == "" {
				call = grow()
			}
			id := newID()
			if err := call(tb.Context(), id); err != nil {
				tb.Fatalf("%s: %v", m.name, err)
			}
			replay.subjects = append(replay.subjects, replaying(m.name, func() string { return id }, call))
		}
		all = append(all, first, replay)
	}
	return all
}
