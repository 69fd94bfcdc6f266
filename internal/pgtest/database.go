package pgtest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// callTimeout bounds everything that this package asks of a server.
const callTimeout = 30 * time.Second

var databases atomic.Int64

// Database is a new, empty database that ends with its test.
type Database struct {
	Server *Server
	Name   string
}

func (s *Server) dsn(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(s.user, s.pass), Host: s.Addr(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Database creates a database for one test.
func (s *Server) Database(t testing.TB) *Database {
	t.Helper()
	d := &Database{Server: s, Name: fmt.Sprintf("idem_test_%d_%d", time.Now().UnixNano(), databases.Add(1))}
	if err := s.exec("CREATE DATABASE " + d.Name); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		// The server of a test that killed it has no databases left to drop.
		if err := s.exec("DROP DATABASE " + d.Name + " WITH (FORCE)"); err != nil && s == shared.server {
			t.Errorf("pgtest: %v", err)
		}
	})
	return d
}

func (s *Server) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// Pool is a pool over a new database of the shared server.
func Pool(t testing.TB, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return Shared(t).Database(t).Pool(t, options...)
}

// DSN returns a connection string for the database.
func (d *Database) DSN() string { return d.Server.dsn(d.Name) }

// Config returns the configuration of a pool over the database.
func (d *Database) Config(t testing.TB, options ...func(*pgxpool.Config)) *pgxpool.Config {
	t.Helper()
	c, err := pgxpool.ParseConfig(d.DSN())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	c.MaxConns = 8
	for _, o := range options {
		o(c)
	}
	return c
}

// Pool opens a pool over the database. When the test ends, the pool is closed
// and every connection must have been given back.
func (d *Database) Pool(t testing.TB, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), d.Config(t, options...))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(callTimeout):
			t.Errorf("pgtest: %d connections were never given back to the pool", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// Conn opens a single connection to the database, for a test to look at it from outside.
func (d *Database) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.DSN())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		conn.Close(ctx)
	})
	return conn
}

// Through makes a pool connect to addr, a host:port in front of the server.
func Through(addr string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			panic(err)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			panic(err)
		}
		c.ConnConfig.Host, c.ConnConfig.Port = host, uint16(n)
		c.ConnConfig.Fallbacks = nil
	}
}

// Mode makes a pool use one of the ways in which pgx runs queries; 0 is the default.
func Mode(m pgx.QueryExecMode) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) {
		if m != 0 {
			c.ConnConfig.DefaultQueryExecMode = m
		}
	}
}

// MaxConns limits a pool to n connections.
func MaxConns(n int32) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.MaxConns = n }
}
