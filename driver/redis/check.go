package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// oldest is the first major version with script flags, without which a full
// memory would refuse to store outcomes.
const oldest = 7

// Check reports whether the client and every master keep the promises of the
// driver: Redis 7.0 or newer, a master, maxmemory-policy noeviction (unless
// [AllowEviction] was given), and a client that observes the deadlines of
// contexts. Otherwise its error matches driver.ErrUnsafeConfig and says what to
// change; it is a store failure when a server cannot be asked.
//
// The first verb runs it, and each one after that, until it has passed once. An
// application may run it too, at its start or as a health check: it costs one
// round trip to every master.
func (d *Driver) Check(ctx context.Context) error {
	if d.misused != nil {
		return d.misused
	}
	nodes, err := d.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		sections, err := await(ctx, func() ([]goredis.Cmder, error) {
			return n.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
				// Before 7.0 INFO takes one section only.
				for _, section := range [...]string{"server", "replication", "memory"} {
					p.Info(ctx, section)
				}
				return nil
			})
		})
		if goredis.HasErrorPrefix(err, "NOPERM") {
			return unsafeConfig("the user may not run INFO, which the check needs; grant +info")
		}
		if err != nil {
			return err
		}
		if err := d.judge(info(sections)); err != nil {
			return fmt.Errorf("%w (server %s)", err, n.addr())
		}
	}
	d.checked.Store(true)
	return nil
}

// checkRun is a check under way. Its results are there when done is closed.
type checkRun struct {
	done  chan struct{}
	err   error
	ended bool // it ended with its caller's context, or by a panic, and says nothing to others
}

// ensureChecked runs Check until it has passed once. Callers that come while it runs
// wait for its outcome and share it: a server that does not answer would otherwise
// keep each of them waiting for all those before.
func (d *Driver) ensureChecked(ctx context.Context) error {
	for !d.checked.Load() {
		d.mu.Lock()
		run := d.checking
		if run == nil {
			run = &checkRun{done: make(chan struct{}), ended: true}
			d.checking = run
			d.mu.Unlock()
			return d.runCheck(ctx, run)
		}
		d.mu.Unlock()
		select {
		case <-run.done:
			if !run.ended && run.err != nil {
				return run.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (d *Driver) runCheck(ctx context.Context, run *checkRun) error {
	defer func() {
		d.mu.Lock()
		d.checking = nil
		d.mu.Unlock()
		close(run.done)
	}()
	run.err = d.Check(ctx)
	run.ended = ctx.Err() != nil
	return run.err
}

func (d *Driver) judge(info map[string]string) error {
	version := info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldest {
		return unsafeConfig("the server's version is %q; use %d.0 or newer", version, oldest)
	}
	if role := info["role"]; role != "master" {
		return unsafeConfig("the server is a %s; connect to the master", role)
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" && !d.evictable {
		return unsafeConfig("maxmemory-policy is %q, which forgets records when memory is full; set it to noeviction", policy)
	}
	return nil
}

// info parses the replies of INFO: lines of name:value.
func info(sections []goredis.Cmder) map[string]string {
	m := make(map[string]string)
	for _, s := range sections {
		for line := range strings.Lines(s.(*goredis.StringCmd).Val()) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				m[name] = value
			}
		}
	}
	return m
}
