from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from gateway.config.sections.pipelines import Aggregate
from gateway.pipeline.jobs import aggregate

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    at: float
    user: str | None
    page: str | None
    amount: int


Key: TypeAlias = tuple[float, str | None]
"""Start of a window, user."""

SLIDING = {"size": "60s", "slide": "20s"}


def settings(**given: Any) -> Aggregate:
    what = given if given.keys() & {"top", "distinct"} else {"measures": {"n": "count(*)"}, **given}
    return Aggregate.model_validate(
        {
            "name": "numbers",
            "type": "aggregate",
            "from": {"topic": "clicks", "time": "time", "watermark": "10s"},
            "by": ["user"],
            "window": {"size": "60s"},
            "to": {"topic": "counts"},
        }
        | what
    )


def clicks(count: int, seed: int = 1) -> list[Event]:
    """Out of order, skewed, with nulls; one window has nothing else."""
    chosen = random.Random(seed)
    made = [
        Event(
            chosen.randrange(600_000) / 1000,
            chosen.choice(["ann", "bob", "eve", None]),
            chosen.choice([None, *"abcdefgh", "a", "a", "b"]),
            chosen.randrange(100),
        )
        for _ in range(count)
    ]
    return [Event(1, "nobody", None, 1), *made]


def windows(events: Iterable[Event], size: int = 60, slide: int = 60) -> dict[Key, list[Event]]:
    """The oracle's: the events of each window and user."""
    found = defaultdict(list)
    for event in events:
        start = event.at // slide * slide
        while start > event.at - size:
            found[start, event.user].append(event)
            start -= slide
    return found


def ranked(events: Iterable[Event], k: int) -> list[tuple[str, int]]:
    counts = Counter(event.page for event in events if event.page is not None)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:k]


def different(events: Iterable[Event]) -> int:
    return len({event.page for event in events} - {None})


def table(spark: Any, events: Sequence[Event]) -> Any:
    from pyspark.sql import functions as F

    rows = [(int(1000 * event.at), *event[1:]) for event in events]
    made = spark.createDataFrame(rows, "ms long, user string, page string, amount int")
    return made.select(F.timestamp_millis("ms").alias("time"), "user", "page", "amount")


def by_window(rows: Iterable[Any], column: Callable[[Any], Any]) -> dict[Key, Any]:
    found = {}
    for row in rows:
        start = row["start"].replace(tzinfo=UTC)
        key = ((start - EPOCH).total_seconds(), row["user"])
        assert key not in found, "a window is told once"
        found[key] = column(row)
    return found


def batch(spark: Any, job: Aggregate, column: Callable[[Any], Any]) -> dict[Key, Any]:
    return by_window(aggregate.build(job, {"from": table(spark, clicks(3000))}).collect(), column)


def top_of(row: Any) -> list[tuple[str, int]]:
    return [(each["value"], each["count"]) for each in row["top"]]


@pytest.mark.parametrize("window", [{"size": "60s"}, SLIDING])
def test_measures_are_those_of_each_window_and_key(spark: Any, window: Mapping[str, str]) -> None:
    measures = {"n": "count(*)", "total": "sum(amount)", "most": "max(amount)"}
    rows = aggregate.build(
        settings(window=window, measures=measures), {"from": table(spark, clicks(3000))}
    )
    assert rows.columns == ["start", "end", "user", *measures]
    found = by_window(rows.collect(), lambda row: (row["n"], row["total"], row["most"]))
    slide = 20 if "slide" in window else 60
    assert found == {
        key: (len(events), sum(e.amount for e in events), max(e.amount for e in events))
        for key, events in windows(clicks(3000), slide=slide).items()
    }


def test_top_are_the_most_frequent_and_of_equal_ones_the_lesser(spark: Any) -> None:
    found = batch(spark, settings(window=SLIDING, top={"of": "page", "k": 3}), top_of)
    expected = windows(clicks(3000), slide=20)
    assert found == {key: ranked(events, 3) for key, events in expected.items()}


def test_distinct_is_exact(spark: Any) -> None:
    found = batch(spark, settings(distinct={"of": "page"}), lambda row: row["distinct"])
    assert found == {key: different(events) for key, events in windows(clicks(3000)).items()}


def test_approximate_distinct_keeps_to_its_error(spark: Any) -> None:
    """Three times the relative standard deviation; the hash has no seed, so this is no chance."""
    events = [Event(at % 60, "ann", f"page {at}", 1) for at in range(20_000)]
    job = settings(distinct={"of": "page", "method": "approximate", "error": "0.02"})
    (row,) = aggregate.build(job, {"from": table(spark, events)}).collect()
    assert row["distinct"] != 20_000
    assert abs(row["distinct"] - 20_000) < 3 * 0.02 * 20_000


def streamed(spark: Any, job: Aggregate, steps: Sequence[Any], directory: Path) -> list[Any]:
    """The rows told, and at last how many were dropped."""
    source, told = directory / "source", []
    source.mkdir()
    stream = spark.readStream.schema(steps[0].schema).option("maxFilesPerTrigger", 1)
    events = stream.parquet(str(source)).withWatermark("time", "10 seconds")
    rows = aggregate.build(job, {"from": events})

    def keep(batch: Any, _: int) -> None:
        told.extend(batch.collect())

    writer = rows.writeStream.outputMode(aggregate.get_output_mode(job)).foreachBatch(keep)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()
    for number, step in enumerate(steps):
        made = directory / f"step-{number}"
        step.coalesce(1).write.parquet(str(made))
        next(made.glob("*.parquet")).rename(source / f"{number}.parquet")
        query.processAllAvailable()
    operators = [each for progress in query.recentProgress for each in progress["stateOperators"]]
    query.stop()
    return [*told, sum(each["numRowsDroppedByWatermark"] for each in operators)]


def steps(spark: Any, events: Sequence[Event]) -> Iterator[Any]:
    for part in range(3):
        yield table(spark, [event for event in events if event.at // 200 == part])
    yield table(spark, [Event(10_000, "zoe", None, 0)])  # ends all windows before it


@pytest.mark.parametrize(
    ("given", "column", "oracle"),
    [
        ({"top": {"of": "page", "k": 3}}, top_of, lambda events: ranked(events, 3)),
        ({"distinct": {"of": "page"}}, lambda row: row["distinct"], different),
    ],
    ids=["top", "distinct"],
)
def test_two_aggregations_in_a_row_tell_each_window_once_when_it_has_ended(
    spark, tmp_path, given, column, oracle
):
    events = clicks(1000)
    *rows, dropped = streamed(spark, settings(**given), list(steps(spark, events)), tmp_path)
    expected = {key: oracle(each) for key, each in windows(events).items()}
    assert (by_window(rows, column), dropped) == (expected, 0)


def test_updates_tell_a_window_whenever_it_grows(spark: Any, tmp_path: Path) -> None:
    job = settings(emit="updates", distinct={"of": "page"})
    first = [Event(1, "ann", "a", 1), Event(2, "ann", "a", 1)]
    parts = [table(spark, first), table(spark, [Event(3, "ann", "b", 1)])]
    *rows, _ = streamed(spark, job, parts, tmp_path)
    assert [row["distinct"] for row in rows] == [1, 2]


def test_late_are_the_events_whose_last_window_the_watermark_has_passed(spark, tmp_path):
    """Against Spark: what it drops of a batch is what is found late against the watermark of the
    batch before."""
    after = [Event(at, "ann", "a", 1) for at in (59.9, 60, 119.9, 120, 150)]
    first = [Event(at, "ann", "a", 1) for at in (-60, -0.5, 0, 130)]  # late from 1970 on
    parts = [table(spark, first), table(spark, after)]
    watermark = EPOCH + timedelta(seconds=120)
    late = aggregate.select_late(settings(), parts[1], watermark).collect()
    *_, dropped = streamed(spark, settings(), parts, tmp_path)
    assert [row["time"].replace(tzinfo=UTC).timestamp() for row in late] == [59.9, 60, 119.9]
    early = aggregate.select_late(settings(), parts[0], EPOCH).collect()
    assert [row["time"].replace(tzinfo=UTC).timestamp() for row in early] == [-60, -0.5]
    # Spark counts groups, after the first aggregation of each task: here one for each window
    assert dropped == 3
    sliding = aggregate.select_late(settings(window=SLIDING), parts[1], watermark).collect()
    assert [row["time"].replace(tzinfo=UTC).timestamp() for row in sliding] == [59.9, 60]


def test_columns_that_the_input_lacks_are_told_with_the_nearest() -> None:
    columns = {"from": {"user": "string", "page": "string", "time": "timestamp"}}
    job = settings(by=["usr"], to={"topic": "out", "key": ["usr", "end", "strt"]})
    assert list(aggregate.check_job(job, columns)) == [
        "to.key: there is no column 'strt'; did you mean 'start'?",
        "by: there is no column 'usr'; did you mean 'user'?",
    ]
    job = settings(by=["usr"])
    assert not list(aggregate.check_job(job, {"from": {}})), "of a registry's schema none is known"


def test_what_spark_would_refuse_or_lose_is_told_before() -> None:
    top = settings(emit="updates", top={"of": "page"}, window={"size": "1s", "slide": "2s"})
    assert list(aggregate.check_job(top, {})) == [
        "window.slide (2s) is longer than size (1s); events between two windows would be lost",
        "top is written when a window has ended; write emit: final, or count by that column",
    ]
    taken = settings(by=["start"], measures={"end": "count(*)"})
    assert [problem.split(":")[0] for problem in aggregate.check_job(taken, {})] == [
        "by",
        "measures.end",
    ]


def test_no_aggregate_runs_in_real_time() -> None:
    assert "keeps state" in str(aggregate.check_realtime(settings()))
