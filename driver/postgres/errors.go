package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idem-go/idem/driver"
)

// The SQLSTATEs on which the driver decides; see appendix A of the PostgreSQL
// manual. Messages are for people, and translated by the server.
const (
	codeSerializationFailure = "40001"
	codeDeadlock             = "40P01"
	codeLockNotAvailable     = "55P03"
	codeUniqueViolation      = "23505"
	codeDivisionByZero       = "22012"
	codeReadOnly             = "25006"
	codeFailedTransaction    = "25P02"
	codeNoSavepoint          = "3B001"
	codeNoStatement          = "26000" // of a prepared statement
	codeDuplicateStatement   = "42P05"
	codeNotSupported         = "0A000" // among others: a cached plan must not change its result type
)

// ErrManagedTx is returned when the application calls Commit or Rollback on the
// transaction that it was given: package idem ends it, together with the claim.
// Nothing has been done. Begin, which sets a savepoint, is allowed.
var ErrManagedTx = errors.New("postgres: the transaction is ended by its operation, not by the application")

// readOnlyError is the driver's own finding that the transaction cannot write.
type readOnlyError struct{}

func (readOnlyError) Error() string    { return "the server accepts no writes" }
func (readOnlyError) SQLState() string { return codeReadOnly }

// code returns the SQLSTATE of an error, and "" when it has none.
func code(err error) string {
	if err == nil {
		return ""
	}
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// Retryable implements [driver.Retrier]: err says that the server rolled
// everything back for a passing reason.
func (d *Driver) Retryable(err error) bool {
	switch code(err) {
	case codeSerializationFailure, codeDeadlock, codeLockNotAvailable:
		return true
	}
	return false
}

// translate is the one place where errors of the server get their kind. The
// error of pgx stays in the chain, and so does the reason why ctx ended.
func (d *Driver) translate(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		if errors.Is(err, ctx.Err()) {
			return err
		}
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case d.Retryable(err):
		return fmt.Errorf("%w: %w", driver.ErrRetryable, err)
	}
	return err
}

// definite reports whether the server answered with an error and still serves
// the connection: then the failed statement, and its transaction, did nothing.
func definite(conn *pgconn.PgConn, err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && !conn.IsClosed()
}
