package idem_test

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"log"
	"os"
	"path/filepath"

	"github.com/idem-go/idem"
	"github.com/idem-go/idem/driver/sqlite"
	"github.com/idem-go/idem/fingerprint"
)

// shards is one operation over several files. A tenant has its orders and its keys in the same
// one, for ever: how many there are cannot be changed while keys are retained.
type shards []*idem.TxOperation[string, *sql.Tx]

func (s shards) of(key idem.Key) *idem.TxOperation[string, *sql.Tx] {
	h := fnv.New32a()
	h.Write([]byte(key.Scope))
	return s[h.Sum32()%uint32(len(s))]
}

// Example_shards spreads tenants over four SQLite files, each with a writer of its own.
func Example_shards() {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var all shards
	for i := range 4 {
		store, err := sqlite.Open(filepath.Join(dir, fmt.Sprintf("shop-%d.db", i)))
		if err != nil {
			log.Fatal(err)
		}
		defer store.Close()
		if _, err := store.DB().Exec(`CREATE TABLE orders (tenant TEXT, item TEXT)`); err != nil {
			log.Fatal(err)
		}
		op, err := idem.NewTx[string](store, idem.Config{Name: "orders.create"})
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, op)
	}
	for _, tenant := range []string{"anna", "bert", "anna"} {
		key := idem.Key{Scope: tenant, ID: "8e03978e"}
		res, err := all.of(key).DoTx(context.Background(), key, fingerprint.None(), func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?, 'tea')`, tenant)
			return "tea for " + tenant, err
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.Value, res.Replayed)
	}
	// Output:
	// tea for anna false
	// tea for bert false
	// tea for anna true
}
