"""Causes at the edges: the source, the sink, event time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from math import ceil
from statistics import median

from .cause import DiagnosedCause, Thresholds, share_of_batch
from .query_run import BatchProgress, QueryRun, SourceProgress, TaskMetrics

MIN_BACKLOG_BATCHES = 3  # batches' worth of records that wait: fewer is what came meanwhile
MIN_STUCK_BATCHES = 3  # batches in which the watermark did not move


def find_source_backlog(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Records wait in the topic while the job has time, or while it asks for them.

    A job that falls behind as its batches take long is not told so here: what makes them long is.
    """
    behind = [(batch, _count_offsets_behind(batch)) for batch in run.batches_with_input]
    known = [(batch, left) for batch, left in behind if left is not None]
    rows = run.get_median(lambda batch: batch.rows)
    if (
        len(known) < MIN_STUCK_BATCHES
        or median(left for _, left in known) < MIN_BACKLOG_BATCHES * rows
    ):
        return
    if known[-1][1] < 0.7 * known[0][1]:  # it is catching up
        return
    idle = _idle_seconds(run)
    asking = run.get_median(_offset_fetch_seconds)
    if not thresholds.is_exceeded(max(idle, asking), run.batch_seconds):
        return
    left = known[-1][1]
    names = {each.name for each in known[-1][0].sources if each.offsets_behind}
    evidence = [
        f"{left:,} records wait in {', '.join(sorted(names))}, {known[0][1]:,} at first",
        f"a batch takes {rows:,.0f} of them",
    ]
    if idle > asking:
        evidence.append(
            f"it is done in {run.batch_seconds:.1f} s, then waits {idle:.1f} s for the next"
        )
    else:
        evidence.append(f"asking for them takes {asking:.1f} s of a batch")
    yield DiagnosedCause(
        "source-behind",
        "the input comes faster than it is taken",
        max(idle, asking),
        share_of_batch(max(idle, asking), run.batch_seconds + idle),
        evidence,
        ("from.max_records", "trigger") if idle > asking else ("from.min_partitions", "kafka"),
        "Take more at a time, or more often."
        if idle > asking
        else "The brokers answer late; more tasks read at a time with min_partitions.",
    )


def find_slow_sink(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """The output takes its time: what its writers say, what the driver does besides Spark's jobs,
    or tasks of the last stage that neither compute nor keep state."""
    noted = [
        batch.sink_seconds for batch in run.batches_with_input if batch.sink_seconds is not None
    ]
    aside = run.get_task_median(_driver_seconds)
    waits = run.get_task_median(lambda batch, work: _sink_wait_seconds(run, batch, work))
    cost = median(noted) * _count_writer_rounds(run) if noted else max(aside, waits)
    if not thresholds.is_exceeded(cost, run.batch_seconds):
        return
    if noted:
        said = f"writers waited {cost:.1f} s of a batch for Kafka to take and commit rows"
    elif aside >= waits:
        said = f"{aside:.1f} s of addBatch pass while no task runs: in the driver, at the sink"
    else:
        said = f"tasks of the last stage wait {waits:.1f} s without using a CPU or the state"
    yield DiagnosedCause(
        "sink-slow",
        "writing the output",
        cost,
        share_of_batch(cost, run.batch_seconds),
        [said],
        ("to.writers", "to.guarantee", "to.kafka"),
        "More writers at a time; look at the output's brokers (acks of all replicas, "
        "transactions). guarantee: at-least-once does without transactions.",
    )


def find_stuck_watermark(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Events go on, the watermark does not: no window ends, the state grows.

    In Spark it is the least of all inputs', and of one the newest event's of all its partitions: an
    idle partition does not hold it, an idle input does.
    """
    moving = [batch for batch in run.batches_with_input if batch.newest_event_time is not None]
    if not moving or not any(each.operators for each in run.batches):
        return
    at = moving[-1].watermark
    if at is not None and at > (
        moving[-1].newest_event_time or 0
    ):  # ahead of events: `late` tells of it
        return
    latest = [batch for batch in moving if batch.watermark == at]
    stood = _span_seconds(latest)
    advanced = (
        (latest[-1].newest_event_time or 0) - (latest[0].newest_event_time or 0) if latest else 0.0
    )
    if len(latest) <= MIN_STUCK_BATCHES or advanced < max(1.0, stood * 0.1):
        return
    silent = _list_idle_inputs(run)
    said = datetime.fromtimestamp(at, UTC).isoformat() if at else "none yet"
    evidence = [
        f"the watermark is {said} for {len(latest)} batches, {stood:.0f} s",
        f"events meanwhile went on by {advanced:.0f} s",
    ]
    evidence += [f"{name} brought no record" for name in silent]
    grown = _count_state_rows(latest[-1]) - _count_state_rows(latest[0])
    if grown > 0:
        evidence.append(f"the state grew by {grown:,} rows")
    yield DiagnosedCause(
        "watermark-stuck",
        f"an idle input ({', '.join(silent)})" if silent else "the watermark stands still",
        stood,
        1.0,
        evidence,
        ("heartbeats into the idle topic",) if silent else ("from.time", "from.watermark"),
        "Send a record of the present time now and then into the idle topic; or, where late ones "
        "may be lost, spark.conf: spark.sql.streaming.multipleWatermarkPolicy: max.",
    )


def find_late_rows(run: QueryRun, thresholds: Thresholds) -> Iterator[DiagnosedCause]:
    """Rows come beyond the watermark and are dropped."""
    rows = sum(batch.rows for batch in run.batches)
    dropped = sum(each.dropped_rows for batch in run.batches for each in batch.operators)
    share = dropped / rows if rows else 0.0
    if share <= thresholds.max_late_share:
        return
    ahead = run.get_median(
        lambda each: (each.watermark or 0) - (each.newest_event_time or each.watermark or 0)
    )
    evidence = [f"{dropped:,} of {rows:,} rows were late ({share:.0%}); after a partial "
                "aggregation, so of records rather more"]  # fmt: skip
    if ahead > 0:
        evidence.append(f"the watermark is {ahead:.0f} s ahead of the newest event of a batch")
    yield DiagnosedCause(
        "late-drops",
        "events later than the watermark allows",
        share * run.batch_seconds,
        share,
        evidence,
        ("from.watermark", "from.late: topic"),
        "One event far ahead has moved the watermark: a producer's clock is wrong; filter such "
        "events before they get into the topic."
        if ahead > 0
        else "A longer watermark waits for them, and keeps more state.",
    )


def _count_offsets_behind(batch: BatchProgress) -> int | None:
    known = [each.offsets_behind for each in batch.sources if each.offsets_behind is not None]
    return sum(known) if known else None


def _offset_fetch_seconds(batch: BatchProgress) -> float:
    return batch.phases.get("latestOffset", 0.0) + batch.phases.get("getBatch", 0.0)


def _idle_seconds(run: QueryRun) -> float:
    """Seconds between batches."""
    gaps = [
        later.started_at - sooner.started_at - sooner.seconds
        for sooner, later in zip(run.batches, run.batches[1:], strict=False)
        if later.id == sooner.id + 1
    ]
    return max(0.0, median(gaps)) if gaps else 0.0


def _count_writer_rounds(run: QueryRun) -> int:
    """How often the cores are taken by writers that wait: there may be more of these."""
    tasks = run.get_task_median(
        lambda _, work: max((s.tasks for s in work.stages if s.last), default=1)
    )
    return ceil(tasks / run.count_parallel_tasks(int(tasks))) if tasks else 1


def _driver_seconds(batch: BatchProgress, work: TaskMetrics) -> float:
    if not work.job_seconds:
        return 0.0
    return max(0.0, batch.phases.get("addBatch", 0.0) - work.job_seconds)


def _sink_wait_seconds(run: QueryRun, batch: BatchProgress, work: TaskMetrics) -> float:
    """A machine with more to do than cores makes every task wait: nothing is told of the sink."""
    if work.is_busy or any(batch.sink_seconds is not None for batch in run.batches_with_input):
        return 0.0
    last = [each for each in work.stages if each.last]
    tasks = max((each.tasks for each in last), default=1)
    waited = sum(max(0.0, each.total - each.cpu - each.gc) for each in last)
    state = sum(
        each.commit_seconds + each.update_seconds + each.removal_seconds for each in batch.operators
    )
    return max(0.0, waited - state - work.python_seconds) / run.count_parallel_tasks(tasks)


def _span_seconds(batches: list[BatchProgress]) -> float:
    return batches[-1].started_at + batches[-1].seconds - batches[0].started_at if batches else 0.0


def _list_idle_inputs(run: QueryRun) -> list[str]:
    """Inputs without a record, where others have some."""
    by_place: dict[int, list[SourceProgress]] = {}
    for batch in run.batches_with_input:
        for place, each in enumerate(batch.sources):
            by_place.setdefault(place, []).append(each)
    if len(by_place) < 2:
        return []
    return [found[-1].name for found in by_place.values() if not any(each.rows for each in found)]


def _count_state_rows(batch: BatchProgress) -> int:
    return sum(each.rows for each in batch.operators)
