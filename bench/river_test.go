package bench

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

func init() { openers["river"] = openRiver }

type riverJob struct {
	ID string `json:"id" river:"unique"`
}

func (riverJob) Kind() string { return "order" }

type riverWorker struct{ river.WorkerDefaults[riverJob] }

func (riverWorker) Work(ctx context.Context, j *river.Job[riverJob]) error {
	perform(j.Args.ID)
	return river.RecordOutput(ctx, result)
}

// openRiver inserts a unique job and waits for its output. River is a queue, and has
// no call that does both: the first caller is told by the stream of events, and one
// that repeats it reads the job, again while it is not finished.
func openRiver(tb testing.TB, dsn string) waiting {
	d := riverpgxv5.New(pgPool(tb, dsn))
	m := must[*rivermigrate.Migrator[pgx.Tx]](tb)(rivermigrate.New(d, nil))
	if _, err := m.Migrate(tb.Context(), rivermigrate.DirectionUp, nil); err != nil {
		tb.Fatal(err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{})
	c := must[*river.Client[pgx.Tx]](tb)(river.NewClient(d, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers: workers, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		FetchCooldown: time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
	}))
	var firsts sync.Map // id to chan *rivertype.JobRow
	finished, unsubscribe := c.Subscribe(river.EventKindJobCompleted)
	tb.Cleanup(unsubscribe)
	go func() {
		for e := range finished {
			var job riverJob
			if json.Unmarshal(e.Job.EncodedArgs, &job) == nil {
				if ch, ok := firsts.LoadAndDelete(job.ID); ok {
					ch.(chan *rivertype.JobRow) <- e.Job
				}
			}
		}
	}()
	if err := c.Start(context.Background()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Stop(context.Background()) })
	return func(ctx context.Context, id string, work func()) error {
		defer working(id, work)()
		ch, _ := firsts.LoadOrStore(id, make(chan *rivertype.JobRow, 1))
		res, err := c.Insert(ctx, riverJob{id}, &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}})
		if err != nil {
			return err
		}
		job := res.Job
		if !res.UniqueSkippedAsDuplicate {
			select {
			case job = <-ch.(chan *rivertype.JobRow):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for job.FinalizedAt == nil {
			time.Sleep(5 * time.Millisecond)
			if job, err = c.JobGet(ctx, job.ID); err != nil {
				return err
			}
		}
		var value []byte
		err = json.Unmarshal(job.Output(), &value)
		return had(value, err)
	}
}
