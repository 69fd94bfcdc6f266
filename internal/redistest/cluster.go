package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster of three masters without replicas.
type Cluster struct {
	Nodes []*Server
}

// StartCluster starts a Cluster and waits until every node finds it healthy. Args
// are added to the command line of each node.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	const size = 3
	c := &Cluster{}
	var admin []*redis.Client
	for range size {
		s := Start(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--cluster-config-file", "nodes.conf",
		}, args...)...)
		c.Nodes = append(c.Nodes, s)
		admin = append(admin, s.Client(t))
	}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redistest: make the cluster: %v", err)
		}
	}
	for i, a := range admin {
		must(a.ClusterAddSlotsRange(ctx, i*slots/size, (i+1)*slots/size-1).Err())
		// Nodes of one epoch would settle the conflict by themselves, slowly.
		must(a.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
	}
	for _, s := range c.Nodes[1:] {
		host, port, err := net.SplitHostPort(s.Addr)
		must(err)
		must(admin[0].ClusterMeet(ctx, host, port).Err())
	}
	for i, a := range admin {
		until(t, "the cluster to agree", func(ctx context.Context) error {
			info, err := a.ClusterInfo(ctx).Result()
			if err == nil && !(strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", size)) &&
				strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d", slots))) {
				err = fmt.Errorf("node %d: %s", i, info)
			}
			return err
		})
	}
	return c
}

// Client returns a client of the cluster, closed at the end of the test. It
// observes the deadlines of contexts; change may set other options.
func (c *Cluster) Client(t testing.TB, change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	o := &redis.ClusterOptions{ContextTimeoutEnabled: true}
	for _, s := range c.Nodes {
		o.Addrs = append(o.Addrs, s.Addr)
	}
	for _, f := range change {
		f(o)
	}
	cc := redis.NewClusterClient(o)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// Move moves the slot of a key, with the keys in it, to the next node, and returns
// the addresses of the old and the new owner.
func (c *Cluster) Move(t testing.TB, key string) (from, to string) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redistest: move a slot: %v", err)
		}
	}
	admin := make([]*redis.Client, len(c.Nodes))
	ids := make([]string, len(c.Nodes))
	source := -1
	var slot int64
	for i, s := range c.Nodes {
		admin[i] = s.Client(t)
		id, err := admin[i].Do(ctx, "CLUSTER", "MYID").Text()
		must(err)
		ids[i] = id
		slot, err = admin[i].ClusterKeySlot(ctx, key).Result()
		must(err)
		if admin[i].Exists(ctx, key).Val() == 1 {
			source = i
		}
	}
	if source < 0 {
		t.Fatal("redistest: move a slot: no node holds the key")
	}
	target := (source + 1) % len(c.Nodes)
	must(admin[target].Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source]).Err())
	must(admin[source].Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target]).Err())
	host, port, err := net.SplitHostPort(c.Nodes[target].Addr)
	must(err)
	keys, err := admin[source].ClusterGetKeysInSlot(ctx, int(slot), 1000).Result()
	must(err)
	for _, k := range keys {
		must(admin[source].Migrate(ctx, host, port, k, 0, patience).Err())
	}
	for _, i := range []int{target, source} {
		must(admin[i].Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[target]).Err())
	}
	return c.Nodes[source].Addr, c.Nodes[target].Addr
}
