package redis

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idem-go/idem/driver"
	"github.com/idem-go/idem/internal/finished"
)

// Driver keeps records in Redis. It is safe for concurrent use. Drivers over one
// store share records when their prefix, namespace and secret are the same.
type Driver struct {
	client    goredis.UniversalClient
	single    *goredis.Client // the client, unless it is one of a Cluster
	prefix    string
	namespace string
	secret    []byte
	evictable bool // AllowEviction
	misused   error

	checked  atomic.Bool
	finished finished.Keys

	mu       sync.Mutex
	checking *checkRun // nil when none is under way
	resume   position  // where the next Purge goes on
}

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Lister = (*Driver)(nil)
)

// Option changes what [New] returns.
type Option func(*Driver)

// WithPrefix sets what the keys in Redis begin with; the default is "idem:". The
// rest is the hash of the key in braces. A brace in the prefix is refused by
// [Driver.Check]: it would put every record into one slot of a Cluster.
func WithPrefix(prefix string) Option { return func(d *Driver) { d.prefix = prefix } }

// WithNamespace sets the namespace that goes into the hash of every key, so that
// applications with the same prefix do not share records. The default is empty.
func WithNamespace(namespace string) Option { return func(d *Driver) { d.namespace = namespace } }

// WithSecret keys the hash of every key, and keeps scope and ID out of the store:
// who can read Redis can then neither see nor guess them, and records come back
// with a zero Key. Records written under another secret, or none, are not found.
// Give each application a prefix of its own: [Driver.List] cannot tell namespaces
// apart without the keys.
func WithSecret(secret []byte) Option {
	return func(d *Driver) { d.secret = append([]byte(nil), secret...) }
}

// AllowEviction lets the driver work on a server that evicts keys when its memory
// is full. An evicted record is forgotten, and its operation runs again.
func AllowEviction() Option { return func(d *Driver) { d.evictable = true } }

// New returns a driver over client, which remains the caller's to close. It is a
// *redis.Client (also one made for Sentinel) or a *redis.ClusterClient, with
// ContextTimeoutEnabled. New does no I/O; see [Driver.Check].
func New(client goredis.UniversalClient, opts ...Option) *Driver {
	d := &Driver{client: client, prefix: "idem:"}
	d.single, _ = client.(*goredis.Client)
	for _, o := range opts {
		o(d)
	}
	d.misused = d.misuse()
	return d
}

// clusterClient is what the driver needs of a *redis.ClusterClient.
type clusterClient interface {
	masters
	Options() *goredis.ClusterOptions
}

// misuse reports what can be told without asking the server.
func (d *Driver) misuse() error {
	if strings.ContainsAny(d.prefix, "{}") {
		return unsafeConfig("the prefix %q contains a brace; choose one without", d.prefix)
	}
	var bounded bool
	switch c := d.client.(type) {
	case nil:
		return unsafeConfig("the client is nil")
	case *goredis.Ring:
		return unsafeConfig("a Ring moves keys to other shards, and forgets them, when a shard is down; use Cluster or Sentinel")
	case interface{ Options() *goredis.Options }:
		bounded = c.Options().ContextTimeoutEnabled
	case clusterClient:
		bounded = c.Options().ContextTimeoutEnabled
	default:
		return unsafeConfig("a client of type %T is not known; use *redis.Client or *redis.ClusterClient", c)
	}
	if !bounded {
		return unsafeConfig("the client ignores the deadlines of contexts; set ContextTimeoutEnabled in its options")
	}
	return nil
}

func unsafeConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", driver.ErrUnsafeConfig, fmt.Sprintf(format, args...))
}

// Guarantees implements [driver.Driver].
func (d *Driver) Guarantees() driver.Guarantees {
	return driver.Guarantees{
		Backend:      "Redis",
		DurableClaim: driver.DurableConfigured,
		Clock:        driver.ServerClock,
		Sharing:      driver.SharedByHosts,
		TxDuplicate:  driver.TxDuplicateNone,
		Failover:     "claims and outcomes that the replica had not received are forgotten",
		WhenFull:     "claims fail, completions are stored",
	}
}
