package driver

// Guarantees states what a driver promises. Each field is checked by the
// conformance suite, or by the fault tests of the driver, and printed in the
// table of the documentation.
type Guarantees struct {
	Backend string // "PostgreSQL"

	// DurableClaim says when a granted claim survives a crash of the store's machine.
	DurableClaim Durability
	// AtomicWithBusinessData says that business writes and the outcome commit
	// together: the driver is a TxDriver.
	AtomicWithBusinessData bool
	// Clock says whose clock judges leases and retention.
	Clock Clock
	// Sharing says who may use one store at the same time.
	Sharing Sharing
	// TxDuplicate says what a duplicate gets while a transaction holds its key.
	TxDuplicate TxDuplicate
	// SingleWriter says that a transaction of one key keeps every other writer of
	// the store waiting, so that an operation nested in it can never proceed.
	SingleWriter bool
	// Failover says, in a few words, what a failover can lose.
	Failover string
	// WhenFull says, in a few words, what happens when memory or disk is full.
	WhenFull string
}

// Durability says when data survives a crash of the store's machine.
type Durability string

const (
	DurableAlways     Durability = "yes"           // once the call has returned
	DurableConfigured Durability = "as configured" // depends on the server's settings; the driver's documentation says which
	DurableNever      Durability = "no"            // lost with the process
)

// Clock says whose clock judges leases.
type Clock string

const (
	ServerClock Clock = "server" // the store's own
	HostClock   Clock = "host"   // that of the machine the application runs on
)

// Sharing says who may use one store at the same time.
type Sharing string

const (
	SharedByGoroutines Sharing = "one process"           // the users of one driver value
	SharedByProcesses  Sharing = "processes on one host" // also other handles on the same files
	SharedByHosts      Sharing = "any host"              // whoever reaches the server
)

// TxDuplicate says what a duplicate gets while a transaction holds its key.
type TxDuplicate string

const (
	// TxDuplicateNone: the driver is no TxDriver.
	TxDuplicateNone TxDuplicate = "no transactions"
	// TxDuplicateFailFast: at once, wherever the transaction was opened.
	TxDuplicateFailFast TxDuplicate = "in flight, at once"
	// TxDuplicateFailFastLocal: at once from the same driver value; another
	// process or handle waits for the writer, then sees the outcome.
	TxDuplicateFailFastLocal TxDuplicate = "in flight, at once (another process waits for the writer)"
)
