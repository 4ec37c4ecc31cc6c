"""What was measured, in one place: sizes are computed from these and nothing else.

Each is of this pipeline's own runs on two shared cores, with Spark and Kafka on the same machine. A
run of `python -m bench.pipeline` that is kept replaces a figure here, with its name as the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Rate(NamedTuple):
    """value: per core, or as `what` says. source: which run; where nothing was run, `assumed`."""

    value: float
    what: str
    source: str

    @property
    def measured(self) -> bool:
        return not self.source.startswith("assumed")


_A = "prototype, pyspark 4.2.0, 2 cores"
_B = "prototype, pyspark 4.3.0, 2 cores under load"

EVENTS: Mapping[str, Rate] = {
    "stateless": Rate(53_900, "events/s a core, JSON to JSON", _B),
    "aggregate": Rate(6_100, "events/s a core, taken from sessions", "assumed: that of sessions"),
    "sessions": Rate(6_100, "events/s a core, 50k keys", _B),
    "join": Rate(13_000, "records/s a core, both sides together", _A),
    "enrich": Rate(33_300, "events/s a core, all looked up in Redis", _A),
}
"""By kind of job."""

WRITER = Rate(18_650, "rows/s a core, written exactly once", _B)
SINK = Rate(46_000, "rows/s a core, written by Spark's own sink", _B)

LATENCY: Mapping[str, Rate] = {
    "stateless": Rate(0.435, "p99 at 1,000 events/s", _A),
    "state": Rate(1.089, "p99 at 1,000 events/s, 10 s windows", _A),
    "realtime": Rate(0.093, "p99 at 1,000 events/s, stateless jobs only", _A),
}
"""From event to output, of batches that begin one after the other."""

FIRST_BATCH = Rate(4.6, "s from the query's start, 1M keys on a local disk; 4M took 4.4", _A)
START = Rate(11.5, "s to start a process with Spark", _A)
FIRST_ROW = Rate(9.6, "measured from the query's start, cold JVM", _A)
REPAIR = Rate(2.7, "s more, when the newest snapshot is damaged", _A)
STORED = Rate(24.0, "bytes a key on disk, a count each, 4M keys", _A)

BANDWIDTH = Rate(500e6, "bytes/s an executor to the checkpoint's store", "assumed: 4 Gbit/s")
AMPLIFIED = Rate(3.0, "bytes in snapshots for each that changed", "assumed")
LOST = Rate(10.0, "s until the driver knows that an executor is gone", "assumed: its socket closes")
TASKS = Rate(1000, "tasks of a batch that one driver starts in time", "assumed; 200 were run")
HEAP = Rate(1.5e9, "bytes of heap an executor, and 0.5 GB a core", "assumed")
PYTHON = Rate(0.3e9, "bytes of a Python worker", "assumed")

HEADROOM = 0.6
"""Of its interval that a batch may work: the rest is for catching up and for what is uneven."""
