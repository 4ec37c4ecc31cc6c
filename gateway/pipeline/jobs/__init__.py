"""The types of jobs: functions from tables to a table, the same for batches and streams.

There is one module for each type, with the type's name. `run.query` imports it and calls
`build(settings, tables)`, which returns a DataFrame with the columns that the settings describe.
`tables` has the inputs by the names of `get_inputs`, with watermarks if they are streams. Nothing
here reads or writes topics. Start reading in `aggregate`.

Each module also has:

- `get_output_mode`: Spark's output mode for the job.
- `check_job`: the problems of its settings. `gateway.pipeline.check` calls it, without Spark.
  Columns of an input that is missing in `columns` are unknown and not checked.
- `check_realtime`: why it cannot run in real-time mode.
- `select_late`, if rows can be late: the rows that Spark drops. `gateway.pipeline.exactly_once`
  calls it to write late records, with the watermark of the batch before theirs.

`sessions` uses `session_processor`, `pieces` and `measures`; `sql` splits SQL into tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config.sections import pipelines as config
from gateway.config.sections.job import Input, Job, Output


def get_inputs(job: Job) -> Mapping[str, Input]:
    """Return the inputs that a job reads as streams, by the names that `build` uses for them."""
    match job:
        case config.Join():
            return {"left": job.left, "right": job.right}
        case config.Query():
            return job.tables
        case config.Sessions() | config.Aggregate() | config.Enrich() | config.Load():
            return {"from": job.from_}
    raise TypeError(type(job).__name__)


def get_output(job: Job) -> Output | None:
    """Return the output of a job; None if it writes no topic."""
    return None if isinstance(job, config.Load) else getattr(job, "to", None)
