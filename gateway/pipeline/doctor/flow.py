"""Find causes at the edges of a job: its source, its sink, and event time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil
from statistics import median

from .query_run import (
    BatchCause,
    BatchProgress,
    QueryRun,
    SourceProgress,
    TaskMetrics,
    Thresholds,
    share_of_batch,
)

MIN_BACKLOG_BATCHES = 3  # batches that waiting records would fill; fewer arrived during the batch
MIN_STUCK_BATCHES = 3  # batches in which the watermark did not move


def find_source_backlog(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find records that wait in the topic while the job is idle, or while it asks for offsets."""
    all_batches = [(batch, _count_offsets_behind(batch)) for batch in run.batches_with_input]
    known = [(batch, behind) for batch, behind in all_batches if behind is not None]
    rows = run.get_median(lambda batch: batch.rows)
    if (
        len(known) < MIN_STUCK_BATCHES
        or median(behind for _, behind in known) < MIN_BACKLOG_BATCHES * rows
    ):
        return
    first_behind = known[0][1]
    last_batch, last_behind = known[-1]
    if last_behind < 0.7 * first_behind:  # it is catching up
        return
    idle = _idle_seconds(run)
    fetching = run.get_median(_offset_fetch_seconds)
    if not thresholds.is_exceeded(max(idle, fetching), run.batch_seconds):
        return
    names = {each.name for each in last_batch.sources if each.offsets_behind}
    evidence = [
        f"{last_behind:,} records wait in {', '.join(sorted(names))}, {first_behind:,} at first",
        f"a batch takes {rows:,.0f} of them",
    ]
    if idle > fetching:
        evidence.append(
            f"a batch ends after {run.batch_seconds:.1f} s, and the next begins {idle:.1f} s later"
        )
    else:
        evidence.append(f"asking for offsets takes {fetching:.1f} s of a batch")
    yield BatchCause(
        "source-behind",
        "records arrive faster than the job reads them",
        evidence,
        ("from.max_records", "trigger") if idle > fetching else ("from.min_partitions", "kafka"),
        "Read more records at a time, or more often."
        if idle > fetching
        else "The brokers answer late. With min_partitions, more tasks read at a time.",
        max(idle, fetching),
        share_of_batch(max(idle, fetching), run.batch_seconds + idle),
    )


def find_slow_sink(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find an output that takes long.

    The writers of exactly-once output record their waits. For other sinks, the cost is the time in
    which no Spark job runs, or in which tasks of the last stage neither compute nor use state,
    whichever is greater.
    """
    writer_waits = [
        batch.sink_seconds for batch in run.batches_with_input if batch.sink_seconds is not None
    ]
    driver = run.get_task_median(_driver_seconds)
    waits = run.get_task_median(lambda batch, work: _sink_wait_seconds(run, batch, work))
    cost = median(writer_waits) * _count_writer_rounds(run) if writer_waits else max(driver, waits)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    if writer_waits:
        evidence = f"writers waited {cost:.1f} s of a batch for Kafka to write and commit rows"
    elif driver >= waits:
        evidence = f"no task runs during {driver:.1f} s of addBatch: the driver waits for the sink"
    else:
        evidence = f"tasks of the last stage wait {waits:.1f} s without using a CPU or the state"
    yield BatchCause(
        "sink-slow",
        "writing the output",
        [evidence],
        ("to.writers", "to.guarantee", "to.kafka"),
        "Use more writers at a time, and look at the output's brokers (acks of all replicas, "
        "transactions). guarantee: at-least-once needs no transactions.",
        cost,
    )


def find_stuck_watermark(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find a watermark that does not move while event times do: no window ends, the state grows.

    In Spark, the watermark of an input follows the newest event of all its partitions, and that of
    a job is the least of its inputs. An idle partition therefore does not stop it, but an idle
    input does.
    """
    batches = [batch for batch in run.batches_with_input if batch.newest_event_time is not None]
    if not batches or not any(each.operators for each in run.batches):
        return
    watermark = batches[-1].watermark
    # A watermark ahead of events makes them late, which is the cause `late-drops`.
    if watermark is not None and watermark > (batches[-1].newest_event_time or 0):
        return
    stuck = [batch for batch in batches if batch.watermark == watermark]
    elapsed = _span_seconds(stuck)
    advanced = (
        (stuck[-1].newest_event_time or 0) - (stuck[0].newest_event_time or 0) if stuck else 0.0
    )
    if len(stuck) <= MIN_STUCK_BATCHES or advanced < max(1.0, elapsed * 0.1):
        return
    idle_inputs = _list_idle_inputs(run)
    watermark_text = (
        datetime.fromtimestamp(watermark, UTC).isoformat() if watermark else "not set yet"
    )
    evidence = [
        f"the watermark is {watermark_text} for {len(stuck)} batches, {elapsed:.0f} s",
        f"event times advanced by {advanced:.0f} s meanwhile",
    ]
    evidence += [f"{name} had no record" for name in idle_inputs]
    growth = _count_state_rows(stuck[-1]) - _count_state_rows(stuck[0])
    if growth > 0:
        evidence.append(f"the state grew by {growth:,} rows")
    yield BatchCause(
        "watermark-stuck",
        f"an idle input ({', '.join(idle_inputs)})"
        if idle_inputs
        else "the watermark does not move",
        evidence,
        ("heartbeats into the idle topic",) if idle_inputs else ("from.time", "from.watermark"),
        "Regularly send a record with the current time to the idle topic; or, if late records may "
        "be lost, set spark.conf: spark.sql.streaming.multipleWatermarkPolicy: max.",
        elapsed,
        1.0,
    )


def find_late_rows(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    rows = sum(batch.rows for batch in run.batches)
    dropped = sum(each.dropped_rows for batch in run.batches for each in batch.operators)
    share = dropped / rows if rows else 0.0
    if share <= thresholds.max_late_share:
        return
    ahead = run.get_median(
        lambda each: (each.watermark or 0) - (each.newest_event_time or each.watermark or 0)
    )
    # Spark counts late rows after a partial aggregation, so one row may stand for several records.
    evidence = [
        f"{dropped:,} of {rows:,} rows were late ({share:.0%}); if they were aggregated before, "
        "more records were"
    ]
    if ahead > 0:
        evidence.append(f"the watermark is {ahead:.0f} s ahead of the newest event of a batch")
    # Before Spark has set a watermark, it drops by 1970.
    early = sum(
        each.dropped_rows
        for batch in run.batches
        if batch.watermark is None
        for each in batch.operators
    )
    if early:
        evidence.append(f"{early:,} of them are of before 1970, where Spark's watermark begins")
    yield BatchCause(
        "late-drops",
        "events later than the watermark allows",
        evidence,
        ("from.watermark", "from.late: topic"),
        "One event far ahead has moved the watermark, because a producer's clock is wrong. Filter "
        "such events before they get into the topic, or with a job of type query in front of this "
        "one, and start this one with --fresh, or with --fresh and start: latest."
        if ahead > 0
        else "Windows, sessions and joins leave out all events of before 1970; with from.late: "
        "topic, the input's .late topic has them."
        if early > dropped / 2
        else "A longer watermark waits for late rows, and keeps more state.",
        share * run.batch_seconds,
        share,
    )


def find_invalid_records(run: QueryRun, thresholds: Thresholds) -> Iterator[BatchCause]:
    """Find records that the job could not decode: a single one counts, even in a single batch."""
    batches = [*run.warm_up, *run.batches]
    affected = [batch for batch in batches if batch.invalid_records]
    if not affected:
        return
    counts: Counter[str] = Counter()
    for batch in affected:
        counts.update(batch.invalid_counts)
    rows = sum(batch.rows for batch in batches)
    total = sum(counts.values())
    last = datetime.fromtimestamp(affected[-1].started_at, UTC)
    yield BatchCause(
        "invalid-records",
        "records that the job could not decode",
        [
            *(f"invalid records of input {name}: {count:,}" for name, count in counts.items()),
            f"in {len(affected)} of {len(batches)} batches, of {rows:,} records; last in batch "
            f"{affected[-1].id}, {last.isoformat(timespec='seconds')}",
        ],
        ("the input's value", "onInvalid"),
        "With onInvalid: dead-letter, <topic>.dlq has each of them, with the header X-Reason; read "
        "it with gateway tail. Correct the fields of the input, or what producers write.",
        0.0,
        min(1.0, total / rows) if rows else 1.0,
    )


def _count_offsets_behind(batch: BatchProgress) -> int | None:
    known = [each.offsets_behind for each in batch.sources if each.offsets_behind is not None]
    return sum(known) if known else None


def _offset_fetch_seconds(batch: BatchProgress) -> float:
    return batch.phases.get("latestOffset", 0.0) + batch.phases.get("getBatch", 0.0)


def _idle_seconds(run: QueryRun) -> float:
    pauses = [
        following.started_at - batch.started_at - batch.seconds
        for batch, following in zip(run.batches, run.batches[1:], strict=False)
        if following.id == batch.id + 1
    ]
    return max(0.0, median(pauses)) if pauses else 0.0


def _count_writer_rounds(run: QueryRun) -> int:
    """Return how many tasks of the last stage each core runs, one after the other."""
    tasks = run.get_task_median(
        lambda _, work: max((each.tasks for each in work.stages if each.last), default=1)
    )
    return ceil(tasks / run.count_parallel_tasks(int(tasks))) if tasks else 1


def _driver_seconds(batch: BatchProgress, work: TaskMetrics) -> float:
    if not work.job_seconds:
        return 0.0
    return max(0.0, batch.phases.get("addBatch", 0.0) - work.job_seconds)


def _sink_wait_seconds(run: QueryRun, batch: BatchProgress, work: TaskMetrics) -> float:
    """Return the part of a batch in which tasks of the last stage neither compute nor use state.

    It is 0 on a machine with more load than cores, where every task waits, and if writers record
    their waits.
    """
    if work.is_busy or any(batch.sink_seconds is not None for batch in run.batches_with_input):
        return 0.0
    last = [each for each in work.stages if each.last]
    tasks = max((each.tasks for each in last), default=1)
    not_computing = sum(max(0.0, each.total - each.cpu - each.gc) for each in last)
    state = sum(
        each.commit_seconds + each.update_seconds + each.removal_seconds for each in batch.operators
    )
    waiting = max(0.0, not_computing - state - work.python_seconds)
    return waiting / run.count_parallel_tasks(tasks)


def _span_seconds(batches: list[BatchProgress]) -> float:
    return batches[-1].started_at + batches[-1].seconds - batches[0].started_at if batches else 0.0


def _list_idle_inputs(run: QueryRun) -> list[str]:
    # By their place in the record, because two inputs may have the same name.
    by_index: dict[int, list[SourceProgress]] = {}
    for batch in run.batches_with_input:
        for index, each in enumerate(batch.sources):
            by_index.setdefault(index, []).append(each)
    if len(by_index) < 2:
        return []
    return [sources[-1].name for sources in by_index.values() if not any(s.rows for s in sources)]


def _count_state_rows(batch: BatchProgress) -> int:
    return sum(each.rows for each in batch.operators)
