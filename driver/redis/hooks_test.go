package redis_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

func contextWithTimeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// heldPipeline holds the first pipeline back, which is that of Check: pipelines of
// go-redis's own, at the start of a connection, do not pass through hooks.
type heldPipeline struct {
	once           sync.Once
	count          atomic.Int64
	asked, release chan struct{}
}

func (h *heldPipeline) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (h *heldPipeline) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }
func (h *heldPipeline) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.count.Add(1)
		h.once.Do(func() {
			close(h.asked)
			<-h.release
		})
		return next(ctx, cmds)
	}
}

// flusher empties the script cache of the servers before every command.
type flusher struct{ flush func() }

func (f flusher) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (f flusher) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		f.flush()
		return next(ctx, cmd)
	}
}
func (f flusher) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		f.flush()
		return next(ctx, cmds)
	}
}

// ender calls end when the server has answered a SCAN.
type ender struct {
	end atomic.Pointer[context.CancelFunc]
}

func (e *ender) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (e *ender) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if end := e.end.Load(); end != nil && cmd.Name() == "scan" {
			(*end)()
		}
		return err
	}
}
func (e *ender) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}
