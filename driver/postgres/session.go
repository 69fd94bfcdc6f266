package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxUses is how often a statement runs before it is prepared anew. The server
	// keeps its plan until it hears that the table has grown, which is when
	// autovacuum has looked: one made while the table was small reads all of it.
	maxUses = 1000
	// maxLosses is how often the statements of a connection may turn out to be gone
	// before no more are prepared on it.
	maxLosses = 3
	// sessionKey finds the session among the custom data of a connection.
	sessionKey = "github.com/idem-go/idem/driver/postgres"
)

// session is a connection, and what the server keeps for it: statements that are
// prepared. Whoever has acquired the connection has the session, and all drivers
// over one pool share it.
//
// Statements are prepared only where pgx prepares those of the application
// (QueryExecModeCacheStatement): whoever chose another mode may have a pooler that
// lends the session to others. A name is a hash of the SQL, so that whoever has
// prepared it has prepared the same.
type session struct {
	conn  *pgconn.PgConn
	named bool
	known map[string]*prepared // by name
	lost  int
}

type prepared struct {
	pgconn.StatementDescription
	uses int
}

func sessionOf(c *pgxpool.Conn) *session {
	conn := c.Conn().PgConn()
	data := conn.CustomData()
	s, ok := data[sessionKey].(*session)
	if !ok {
		cfg := c.Conn().Config()
		s = &session{
			conn:  conn,
			named: cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && cfg.StatementCacheCapacity > 0,
			known: make(map[string]*prepared),
		}
		data[sessionKey] = s
	}
	return s
}

// nameOf returns the name under which a statement is prepared. Its last word is
// for people, who find it in pg_prepared_statements and in a trace.
func nameOf(sql string) string {
	sum := sha256.Sum256([]byte(sql))
	word, _, _ := strings.Cut(sql, " ")
	return "idem_" + hex.EncodeToString(sum[:12]) + "_" + word
}

// exec sends the statements in one round trip and returns the results of those
// that succeeded. Outside a transaction block they are one transaction, and what is
// not prepared is prepared first, in a round trip more, once in a while.
//
// When a prepared statement turns out to be of no use, and no transaction is open
// afterwards, then nothing has been done, and everything is sent again, unnamed.
func (s *session) exec(ctx context.Context, statements ...statement) ([]result, error) {
	idle := s.conn.TxStatus() == 'I'
	if s.named && idle {
		if err := s.prepare(ctx, statements); err != nil && !s.forget(err) {
			return nil, err
		}
	}
	results, err := s.send(ctx, s.known, statements)
	if err == nil || !s.forget(err) {
		return results, err
	}
	if !idle {
		s.named = false // who undid the application's work for that does it once
	} else if s.conn.TxStatus() == 'I' {
		return s.send(ctx, s.known, statements)
	}
	return results, err
}

// forget reports whether err is that of a prepared statement which is not there
// (somebody sent DEALLOCATE or DISCARD, or the session is another one), is there
// already, or no longer fits its table. Then nothing is known any more.
func (s *session) forget(err error) bool {
	if !s.named {
		return false
	}
	switch code(err) {
	case codeNoStatement, codeDuplicateStatement, codeNotSupported:
		clear(s.known)
		s.lost++
		s.named = s.lost < maxLosses
		return true
	}
	return false
}

// prepare prepares what is not prepared, or has been for long, in one round trip.
func (s *session) prepare(ctx context.Context, statements []statement) error {
	var missing []statement
	for _, st := range statements {
		if st.name == "" {
			continue
		}
		if p := s.known[st.name]; p == nil || p.uses >= maxUses {
			missing = append(missing, st)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	pipe := s.conn.StartPipeline(ctx)
	for _, st := range missing {
		delete(s.known, st.name)
		// To close what is not there is no error.
		pipe.SendDeallocate(st.name)
		pipe.SendPrepare(st.name, st.sql, oids(st.args))
	}
	err := pipe.Sync()
	for n := 0; err == nil && n < len(missing); {
		var got any
		switch got, err = pipe.GetResults(); d := got.(type) {
		case *pgconn.StatementDescription:
			p := &prepared{StatementDescription: *d}
			p.Name = missing[n].name
			if len(p.Fields) == 0 {
				// Without a field pgx asks for a description at every call.
				p.Fields = make([]pgconn.FieldDescription, 1)
			}
			s.known[p.Name] = p
			n++
		case nil:
			err = cmpErr(err, fmt.Errorf("%w: %d of %d statements were prepared", errReply, n, len(missing)))
		}
	}
	return cmpErr(err, pipe.Close())
}

// unnamed is exec in a transaction in which nothing that is prepared can be relied on.
func (s *session) unnamed(ctx context.Context, statements ...statement) ([]result, error) {
	return s.send(ctx, nil, statements)
}

// send sends the statements, those that are known by name.
func (s *session) send(ctx context.Context, known map[string]*prepared, statements []statement) ([]result, error) {
	var batch pgconn.Batch
	for _, st := range statements {
		if st.ahead {
			continue
		}
		values := make([][]byte, len(st.args))
		for i := range st.args {
			values[i] = st.args[i].bytes()
		}
		if p := known[st.name]; p != nil {
			p.uses++
			batch.ExecStatement(&p.StatementDescription, values, binaryFormat, binaryFormat)
			continue
		}
		batch.ExecParams(st.sql, values, oids(st.args), binaryFormat, binaryFormat)
	}
	results := make([]result, 0, len(statements))
	all := s.conn.ExecBatch(ctx, &batch)
	var failed error
	for failed == nil && all.NextResult() {
		var r result
		from := all.ResultReader()
		for from.NextRow() {
			r.rows = append(r.rows, copied(from.Values()))
		}
		if r.tag, failed = from.Close(); failed == nil {
			results = append(results, r)
		}
	}
	return results, cmpErr(all.Close(), failed)
}

// binaryFormat is the format of every parameter and every column.
var binaryFormat = []int16{pgx.BinaryFormatCode}

func oids(args []arg) []uint32 {
	all := make([]uint32, len(args))
	for i, a := range args {
		all[i] = a.oid
	}
	return all
}

// result is what a statement returned. Its memory is its own.
type result struct {
	rows [][][]byte
	tag  pgconn.CommandTag
}

// copied copies a row, which is valid until the next message is read.
func copied(values [][]byte) [][]byte {
	size := 0
	for _, v := range values {
		size += len(v)
	}
	row, buf := make([][]byte, len(values)), make([]byte, 0, size)
	for i, v := range values {
		if v == nil {
			continue
		}
		at := len(buf)
		buf = append(buf, v...)
		row[i] = buf[at:len(buf):len(buf)]
	}
	return row
}
