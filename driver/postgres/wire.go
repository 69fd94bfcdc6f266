package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idem-go/idem/driver"
)

// statement is one statement of a batch. What has no name is parsed in its place,
// after the statements before it have run; pgx.Batch would parse everything first,
// which fails behind a ROLLBACK TO.
type statement struct {
	sql   string
	name  string // under which it may be prepared; empty for what is seldom sent
	args  []arg
	ahead bool // prepare it for later, and do not send it now
}

func stmt(sql string, args ...arg) statement { return statement{sql: sql, args: args} }

// stmt returns a statement for the driver's table that may be prepared.
func (d *Driver) stmt(template string, args ...arg) statement {
	r := d.render(template)
	return statement{sql: r.sql, name: r.name, args: args}
}

// arg is a parameter in the binary format. Most are small, and stand in it.
type arg struct {
	oid   uint32
	size  int // of what stands in fixed; 0 when it is value
	fixed [16]byte
	value []byte // nil is NULL
}

// bytes returns the parameter as it is sent. It shares memory with a.
func (a *arg) bytes() []byte {
	if a.size > 0 {
		return a.fixed[:a.size]
	}
	return a.value
}

func number(oid uint32, size int, v uint64) arg {
	a := arg{oid: oid, size: size}
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	copy(a.fixed[:], b[8-size:])
	return a
}

func uuid[T ~[16]byte](v T) arg { return arg{oid: pgtype.UUIDOID, size: len(v), fixed: v} }
func bytea(v []byte) arg        { return arg{oid: pgtype.ByteaOID, value: v} }
func text(v string) arg         { return arg{oid: pgtype.TextOID, value: append([]byte{}, v...)} }
func int2(v int16) arg          { return number(pgtype.Int2OID, 2, uint64(v)) }
func int4(v int32) arg          { return number(pgtype.Int4OID, 4, uint64(v)) }
func int8(v int64) arg          { return number(pgtype.Int8OID, 8, uint64(v)) }

func boolean(v bool) arg {
	if v {
		return number(pgtype.BoolOID, 1, 1)
	}
	return number(pgtype.BoolOID, 1, 0)
}

// epoch is the instant from which PostgreSQL counts microseconds.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// instant is a timestamptz; the zero time is NULL.
func instant(t time.Time) arg {
	if t.IsZero() {
		return arg{oid: pgtype.TimestamptzOID}
	}
	return number(pgtype.TimestamptzOID, 8, uint64(t.UnixMicro()-epoch))
}

// interval has no days or months, whose length would depend on the session's time zone.
func interval(d time.Duration) arg {
	a := number(pgtype.IntervalOID, 8, uint64(d.Microseconds()))
	a.size = 16
	return a
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// errReply is wrapped by errors about a reply that no query of the driver has.
var errReply = errors.New("unexpected reply of the server")

// row reads the columns of one row in the binary format, from left to right. The
// first that is not what was asked for sets err, and the others are zero.
type row struct {
	values [][]byte
	err    error
}

// only returns the row of a result that has exactly one.
func only(r result) *row {
	if len(r.rows) != 1 {
		return &row{err: fmt.Errorf("%w: %d rows, want 1", errReply, len(r.rows))}
	}
	return &row{values: r.rows[0]}
}

// next returns the bytes of the next column, nil for NULL, which have the given
// size unless that is negative.
func (r *row) next(size int) []byte {
	if r.err != nil {
		return nil
	}
	if len(r.values) == 0 {
		r.err = fmt.Errorf("%w: too few columns", errReply)
		return nil
	}
	v := r.values[0]
	r.values = r.values[1:]
	if v != nil && size >= 0 && len(v) != size {
		r.err = fmt.Errorf("%w: a column of %d bytes, want %d", errReply, len(v), size)
		return nil
	}
	return v
}

func (r *row) bytes() []byte { return r.next(-1) }
func (r *row) text() string  { return string(r.next(-1)) }

func (r *row) bool() bool {
	v := r.next(1)
	return v != nil && v[0] != 0
}

func (r *row) int2() int16 {
	if v := r.next(2); v != nil {
		return int16(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (r *row) int4() int32 {
	if v := r.next(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (r *row) int8() int64 {
	if v := r.next(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (r *row) uuid() (a [16]byte) {
	copy(a[:], r.next(16))
	return a
}

func (r *row) instant() time.Time {
	if v := r.next(8); v != nil {
		return time.UnixMicro(int64(binary.BigEndian.Uint64(v)) + epoch).UTC()
	}
	return time.Time{}
}

// recordColumns are the columns that [row.record] reads, of a table called t and
// an instant called c.now. Naming each keeps a column that somebody adds harmless.
const (
	recordColumns = `c.now, ` + storedColumns
	storedColumns = `t.state, t.hold, t.attempt, t.fence, t.token, t.created_at, t.lease_until, t.completed_at, ` +
		`t.retain_until, t.grace_until, t.scope, t.id, t.operation, t.summary, t.note, t.fingerprint`
)

// record reads recordColumns. All but the instant are NULL when there is no record.
func (r *row) record() driver.Record { return r.stored(r.instant()) }

// stored reads storedColumns.
func (r *row) stored(now time.Time) driver.Record {
	return driver.Record{
		Now: now, State: driver.State(r.int2()), Hold: r.bool(), Attempt: int(r.int4()), Fence: r.int8(), Token: r.uuid(),
		CreatedAt: r.instant(), LeaseUntil: r.instant(), CompletedAt: r.instant(), RetainUntil: r.instant(), GraceUntil: r.instant(),
		Key: driver.Key{Scope: r.text(), ID: r.text()}, Operation: r.text(), Summary: r.text(), Note: r.text(), Fingerprint: r.bytes(),
	}
}

// recordOf reads recordColumns and the result, of the record of k.
func (r *row) recordOf(k driver.Key) (driver.Record, error) { return r.result(r.record(), k) }

// result reads the result of rec, which is to be the record of k.
func (r *row) result(rec driver.Record, k driver.Key) (driver.Record, error) {
	rec.Result = r.bytes()
	if r.err != nil {
		return driver.Record{}, r.err
	}
	switch stored := rec.Key; {
	case rec.State == driver.StateAbsent:
		return driver.Record{Now: rec.Now}, nil
	case rec.State > driver.StateReleased:
		return driver.Record{}, fmt.Errorf("%w: state %d", driver.ErrForeignRecord, rec.State)
	case stored != k && stored != driver.Key{}:
		return driver.Record{}, fmt.Errorf("%w: its scope and id are not those of its hash", driver.ErrForeignRecord)
	}
	rec.Key = k
	return rec, nil
}
