"""List the figures from which the sizes of a plan are computed, each with its source.

The measured ones are of this pipeline on two shared cores, with Spark and Kafka on the same
machine. When a run of `python -m bench.pipeline` is kept in `bench/results`, its figures replace
those here, and its file becomes their source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Estimate(NamedTuple):
    """A figure that plans are computed from.

    Attributes:
        description: The unit and the circumstances, as a plan shows them.
        source: The run that measured it. It begins with `assumed` if none did.
    """

    value: float
    description: str
    source: str


_BENCH_RESULT = "bench/results/2026-11-21.md, pyspark 4.2.0, 2 cores"
_PROTOTYPE = "prototype, pyspark 4.2.0, 2 cores"
_LOADED_PROTOTYPE = "prototype, pyspark 4.3.0, 2 cores under load"

EVENT_RATES: Mapping[str, Estimate] = {
    "stateless": Estimate(53_900, "events/s a core, JSON to JSON", _LOADED_PROTOTYPE),
    "aggregate": Estimate(
        38_200, "events/s a core, taken from sessions", "assumed: that of sessions"
    ),
    "sessions": Estimate(38_200, "events/s a core, 50k keys", _BENCH_RESULT),
    "join": Estimate(19_000, "records/s a core, both sides together", _BENCH_RESULT),
    "enrich": Estimate(61_000, "events/s a core, all looked up in Redis", _BENCH_RESULT),
}
"""The rate per core of each kind of job."""

TRANSACTIONAL_WRITE_RATE = Estimate(60_000, "rows/s a core, written exactly once", _BENCH_RESULT)
SPARK_SINK_WRITE_RATE = Estimate(
    41_800, "rows/s a core, written by Spark's own sink", _BENCH_RESULT
)

LATENCIES_S: Mapping[str, Estimate] = {
    "stateless": Estimate(0.35, "p99 at 1,000 events/s", _BENCH_RESULT),
    "state": Estimate(0.724, "p99 at 1,000 events/s, 10 s windows", _BENCH_RESULT),
    "stateless, exactly once": Estimate(1.02, "p99 at 1,000 events/s, exactly once", _BENCH_RESULT),
    "state, exactly once": Estimate(
        1.39, "p99 at 1,000 events/s, 10 s windows, exactly once", _BENCH_RESULT
    ),
}
"""The times from an event to its output, by kind of job and guarantee.

The output is written at least once where the key does not say otherwise. Each batch began when the
one before had ended.
"""

FIRST_BATCH_S = Estimate(
    4.7, "s from the query's start, 1M keys on a local disk; 100k took 4.66", _BENCH_RESULT
)
SPARK_START_S = Estimate(11.5, "s to start a process with Spark", _PROTOTYPE)
FIRST_ROW_S = Estimate(6.34, "measured from the first batch's start, cold JVM", _BENCH_RESULT)
SNAPSHOT_REPAIR_S = Estimate(2.2, "s more, when the newest snapshot is damaged", _BENCH_RESULT)

CHECKPOINT_BYTES_PER_S = Estimate(
    500e6, "bytes/s an executor to the checkpoint's store", "assumed: 4 Gbit/s"
)
SNAPSHOT_AMPLIFICATION = Estimate(3.0, "bytes in snapshots for each that changed", "assumed")
EXECUTOR_LOSS_TIMEOUT_S = Estimate(
    10.0, "s until the driver knows that an executor is gone", "assumed: its socket closes"
)
EXECUTOR_HEAP_BYTES = Estimate(1.5e9, "bytes of heap an executor, and 0.5 GB a core", "assumed")
PYTHON_WORKER_BYTES = Estimate(0.3e9, "bytes of a Python worker", "assumed")

MAX_UTILIZATION = 0.6
"""The share of the time that batches may take.

The rest is needed to catch up after a restart, and because load and partitions are uneven.
"""
