package postgres

import "time"

// WithPatience shortens how long a lost commit is looked for.
func WithPatience(d time.Duration) Option { return func(o *options) { o.patience = d } }
