package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/internal/redistest"
)

// The test binary is the worker, too, when it is told so.
func TestMain(m *testing.M) {
	if addr := os.Getenv("WORKER_REDIS"); addr != "" {
		child(addr)
		return
	}
	os.Exit(m.Run())
}

// child runs a worker that dies, as if killed, at the nth time that it gets to a place.
func child(addr string) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	place, count, _ := strings.Cut(os.Getenv("WORKER_DIES"), " ")
	n, _ := strconv.Atoi(count)
	die := func() {
		if n--; n == 0 {
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				self.Kill()
			}
			select {}
		}
	}
	w := worker{stream: "payments", group: "g", consumer: os.Getenv("WORKER_NAME"), idle: 100 * time.Millisecond}
	switch place {
	case "booking":
		w.booking = die
	case "booked":
		w.booked = die
	}
	fmt.Fprintln(os.Stderr, run(context.Background(), addr, os.Getenv("WORKER_DB"), w))
	os.Exit(1)
}

// bench is a stream, a database, and workers that come and go.
type bench struct {
	t    *testing.T
	addr string
	path string
	c    *redis.Client
}

func newBench(t *testing.T) *bench {
	s := redistest.Start(t)
	return &bench{t: t, addr: s.Addr, path: filepath.Join(t.TempDir(), "accounts.db"), c: s.Client(t)}
}

func (b *bench) add(key, account string, amount int) {
	b.t.Helper()
	err := b.c.XAdd(b.t.Context(), &redis.XAddArgs{
		Stream: "payments", Values: map[string]any{"key": key, "account": account, "amount": amount},
	}).Err()
	if err != nil {
		b.t.Fatal(err)
	}
}

// start starts a worker. The test waits for its end, if it is to die, or kills it.
func (b *bench) start(name, dies string) *exec.Cmd {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "WORKER_REDIS="+b.addr, "WORKER_DB="+b.path, "WORKER_NAME="+name, "WORKER_DIES="+dies)
	cmd.Stderr = os.Stderr
	endWithParent(cmd)
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

// drained waits until every message is acknowledged.
func (b *bench) drained() {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		groups, err := b.c.XInfoGroups(b.t.Context(), "payments").Result()
		if err == nil && len(groups) == 1 && groups[0].Pending == 0 && groups[0].Lag == 0 {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the messages were not drained: %+v, %v", groups, err)
		}
	}
}

// booked returns how many entries there are and what all accounts hold.
func (b *bench) booked() (entries, total, balances int) {
	b.t.Helper()
	drv, err := sqlite.Open(b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer drv.Close()
	err = drv.DB().QueryRow("SELECT count(*), sum(amount), (SELECT sum(balance) FROM accounts) FROM entries").Scan(&entries, &total, &balances)
	if err != nil {
		b.t.Fatal(err)
	}
	return entries, total, balances
}

func (b *bench) want(n int) {
	b.t.Helper()
	entries, total, balances := b.booked()
	if sum := n * (n + 1) / 2; entries != n || total != sum || balances != sum {
		b.t.Errorf("%d entries of %d cents, accounts hold %d; want %d of %d", entries, total, balances, n, sum)
	}
}

// A worker is killed in the transaction, and between the commit and the
// acknowledgement, and started again, or taken over from: one effect a message.
func TestWorker_Killed(t *testing.T) {
	const n = 120
	b := newBench(t)
	for i := 1; i <= n; i++ {
		b.add(fmt.Sprint("key-", i), fmt.Sprint("account-", i%7), i)
		if i%3 == 0 { // the producer did not hear, and sends it again
			b.add(fmt.Sprint("key-", i), fmt.Sprint("account-", i%7), i)
		}
	}
	for i, dies := range []string{"booking 5", "booked 7", "booked 1", "booking 1", "booked 30"} {
		// The same worker again, or another that has to take its messages over.
		w := b.start([]string{"a", "a", "b", "c", "c"}[i], dies)
		if err := w.Wait(); err == nil || w.ProcessState.Exited() {
			t.Fatalf("%s: the worker ended with %v, not by the kill", dies, err)
		}
	}
	b.start("d", "")
	b.drained()
	b.want(n)
}

// Workers that run at the same time do not book twice either.
func TestWorker_Several(t *testing.T) {
	const n = 60
	b := newBench(t)
	for i := 1; i <= n; i++ {
		for range 2 {
			b.add(fmt.Sprint("key-", i), "account", i)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		b.start(name, "")
	}
	b.drained()
	b.want(n)
}

// What can never be booked is put aside, and does not hold up the rest.
func TestWorker_Buries(t *testing.T) {
	b := newBench(t)
	b.add("key-1", "alice", 1)
	b.add("key-1", "mallory", 1000) // the key of another payment
	b.add("", "alice", 1000)
	b.add("clé", "alice", 1000)
	b.add("key-2", "alice", 2)
	b.start("a", "")
	b.drained()
	b.want(2)
	if n, err := b.c.XLen(t.Context(), "payments:dead").Result(); err != nil || n != 3 {
		t.Errorf("%d messages were put aside, %v; want 3", n, err)
	}
}

func TestParse(t *testing.T) {
	p, err := parse(map[string]any{"key": "k", "account": "alice", "amount": "1200"})
	if err != nil || p != (payment{"k", "alice", 1200}) {
		t.Errorf("parse = %+v, %v", p, err)
	}
	for _, missing := range []string{"key", "account", "amount"} {
		fields := map[string]any{"key": "k", "account": "alice", "amount": "1200"}
		delete(fields, missing)
		if _, err := parse(fields); err == nil {
			t.Errorf("a message without %s was accepted", missing)
		}
	}
}
