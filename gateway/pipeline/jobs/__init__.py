"""The types of jobs: functions from tables to a table, the same for batches and streams.

There is one module for each type, with the type's name. `run.query` imports it and calls
`build(settings, tables)`, which returns a DataFrame with the columns that the settings describe.
`tables` has the inputs by the names of `job_settings.get_inputs`, with watermarks if they are
streams. Nothing here reads or writes topics. Start reading in `aggregate`.

Each module also has:

- `get_output_mode`: Spark's output mode for the job.
- `check_job`: the problems of its settings. `gateway.pipeline.check` calls it, without Spark.
  Columns of an input that is missing in `columns` are unknown and not checked.
- `check_realtime`: why it cannot run in real-time mode.
- `select_late`, if rows can be late: the rows that Spark drops. `gateway.pipeline.exactly_once`
  calls it to write late records, with the watermark of the batch before theirs.

`sessions` uses `session_processor` and `pieces`; `sql` reads SQL and measures without Spark.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from gateway.config.sections.job import Job
from gateway.pipeline.job_settings import get_job_type


def import_job_module(job: Job) -> ModuleType:
    return import_module(f"{__name__}.{get_job_type(job)}")
