package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idem-go/idem/driver/postgres"
	"github.com/idem-go/idem/internal/pgtest"
)

// growPostgres makes stores that are databases of one server, so that none has more of anything.
// Its shared buffers are those of PostgreSQL's defaults.
func growPostgres(tb testing.TB) grower {
	s := pgtest.Start(tb, pgtest.Config{Settings: map[string]string{"shared_buffers": "128MB", "max_wal_size": "4GB"}})
	return func(tb testing.TB, n int) *grown { return growDatabase(tb, s.Database(tb), n) }
}

func growDatabase(tb testing.TB, db *pgtest.Database, n int) *grown {
	pool := db.Pool(tb, pgtest.MaxConns(16))
	d := postgres.New(pool)
	if err := d.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	seedRecord(tb, d)
	ctx, conn := tb.Context(), db.Conn(tb)
	rows := must[pgx.Rows](tb)(conn.Query(ctx, `SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = 'idem_records'::regclass AND attnum > 0 AND NOT attisdropped`))
	columns := make(map[string]string)
	var name, kind string
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error { columns[name] = kind; return nil }); err != nil {
		tb.Fatal(err)
	}
	multiply, prefix, seed := pgMultiply(columns), hashPrefix(), grownHash(0)
	for from := 1; from < n; from += loadBatch {
		to := min(from+loadBatch, n) - 1
		if _, err := conn.Exec(ctx, multiply, prefix, strings.TrimSuffix(grownID(0), "000000000000"), int64(n),
			fmt.Sprintf("%d microseconds", grownAge.Microseconds()/int64(n)), int64(from), int64(to), seed[:]); err != nil {
			tb.Fatal(err)
		}
	}
	for _, sql := range []string{"VACUUM ANALYZE idem_records", "CHECKPOINT"} { // as autovacuum would
		if _, err := conn.Exec(ctx, sql); err != nil {
			tb.Fatal(err)
		}
	}
	size := func(sql string) (n int64) {
		if err := conn.QueryRow(ctx, "SELECT ("+sql+")::int8").Scan(&n); err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return &grown{
		n: n, drv: d, doTx: inTx[pgx.Tx](tb, d),
		parts: []part{
			{"table", size("pg_table_size('idem_records')")},
			{"primary key", size("pg_relation_size('idem_records_pkey')")},
			{"index of what is due", size("pg_relation_size('idem_records_purge')")},
			{"all", size("pg_total_relation_size('idem_records')")},
		},
		logged: func() int64 { return size("pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')") },
	}
}

// hashPrefix is what driver.Key.Hash hashes before an id.
func hashPrefix() []byte {
	scope, id := key("").Scope, grownID(0)
	b := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(len(scope)))
	return binary.BigEndian.AppendUint32(append(b, scope...), uint32(len(id)))
}

// pgMultiply returns the statement that multiplies the one record there is. Its columns
// are the catalog's, and what it does not know it copies.
func pgMultiply(columns map[string]string) string {
	names := slices.Sorted(maps.Keys(columns))
	values := make([]string, len(names))
	for i, name := range names {
		switch {
		case name == "kh":
			values[i] = "encode(substring(sha256($1::bytea || convert_to(k.id, 'UTF8')) FOR 16), 'hex')::uuid"
		case name == "id":
			values[i] = "k.id"
		case columns[name] == "timestamp with time zone":
			values[i] = "t." + name + " - k.age"
		default:
			values[i] = "t." + name
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `INSERT INTO idem_records (%s) SELECT %s FROM idem_records t,
		(SELECT $2::text || lpad(i::text, 12, '0') AS id, ($3::int8 - i) * $4::text::interval AS age FROM generate_series($5::int8, $6::int8) i) k
		WHERE t.kh = encode($7::bytea, 'hex')::uuid`, strings.Join(names, ", "), strings.Join(values, ", "))
	return b.String()
}
