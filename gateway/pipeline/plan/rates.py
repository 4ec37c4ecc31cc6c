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


_KEPT = "bench/results/2026-11-21.md, pyspark 4.2.0, 2 cores"
_A = "prototype, pyspark 4.2.0, 2 cores"
_B = "prototype, pyspark 4.3.0, 2 cores under load"

EVENTS: Mapping[str, Rate] = {
    "stateless": Rate(53_900, "events/s a core, JSON to JSON", _B),
    "aggregate": Rate(38_200, "events/s a core, taken from sessions", "assumed: that of sessions"),
    "sessions": Rate(38_200, "events/s a core, 50k keys", _KEPT),
    "join": Rate(19_000, "records/s a core, both sides together", _KEPT),
    "enrich": Rate(61_000, "events/s a core, all looked up in Redis", _KEPT),
}
"""By kind of job."""

WRITER = Rate(60_000, "rows/s a core, written exactly once", _KEPT)
SINK = Rate(41_800, "rows/s a core, written by Spark's own sink", _KEPT)

LATENCY: Mapping[str, Rate] = {
    "stateless": Rate(0.35, "p99 at 1,000 events/s", _KEPT),
    "state": Rate(0.724, "p99 at 1,000 events/s, 10 s windows", _KEPT),
    "stateless, exactly once": Rate(1.02, "p99 at 1,000 events/s, exactly once", _KEPT),
    "state, exactly once": Rate(1.39, "p99 at 1,000 events/s, 10 s windows, exactly once", _KEPT),
    "realtime": Rate(0.0161, "p99 at 1,000 events/s, stateless jobs only", _KEPT),
}
"""From event to output, of batches that begin one after the other; at least once if not said."""

FIRST_BATCH = Rate(4.7, "s from the query's start, 1M keys on a local disk; 100k took 4.66", _KEPT)
START = Rate(11.5, "s to start a process with Spark", _A)
FIRST_ROW = Rate(6.34, "measured from the first batch's start, cold JVM", _KEPT)
REPAIR = Rate(2.2, "s more, when the newest snapshot is damaged", _KEPT)
STORED = Rate(34.1, "bytes a key on disk, a count each, 1M keys", _KEPT)

BANDWIDTH = Rate(500e6, "bytes/s an executor to the checkpoint's store", "assumed: 4 Gbit/s")
AMPLIFIED = Rate(3.0, "bytes in snapshots for each that changed", "assumed")
LOST = Rate(10.0, "s until the driver knows that an executor is gone", "assumed: its socket closes")
TASKS = Rate(1000, "tasks of a batch that one driver starts in time", "assumed; 200 were run")
HEAP = Rate(1.5e9, "bytes of heap an executor, and 0.5 GB a core", "assumed")
PYTHON = Rate(0.3e9, "bytes of a Python worker", "assumed")

HEADROOM = 0.6
"""Of its interval that a batch may work: the rest is for catching up and for what is uneven."""
