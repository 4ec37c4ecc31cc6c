"""Sessions against plain Python: in batch, and as streams with late events and restarts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.file_stream import FileStream
from support.session_windows import Event, Session, SparkSessionModel, compute_sessions

from gateway.config.sections.pipelines import Sessions
from gateway.errors import PipelineError
from gateway.pipeline.jobs import sessions as job

COLUMNS = "user string, time timestamp, amount int, _partition int, _offset bigint"
TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
MINUTE, HOUR = 60_000_000, 3_600_000_000  # microseconds
NOON = int(TEN.timestamp()) * 1_000_000
KINDS: tuple[dict[str, Any], ...] = ({}, {"emit": "updates"}, {"maxLength": "30d"})


def settings(**more: Any) -> Sessions:
    written = {
        "name": "visits",
        "type": "sessions",
        "from": {"topic": "clicks", "time": "time"},
        "by": ["user"],
        "gap": "30m",
        "measures": {"total": "sum(amount)"},
        "to": {"topic": "visits"},
    }
    return Sessions.model_validate(written | more)


def at(clock: str) -> int:
    """Microseconds of a time of that day."""
    hours, minutes = map(int, clock.split(":"))
    return NOON + (hours - 10) * HOUR + minutes * MINUTE


def instant(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def rows(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {
            "user": event.key,
            "time": instant(event.time).isoformat(),
            "amount": event.value,
            "_partition": 0,
            "_offset": number,
        }
        for number, event in enumerate(events)
    ]


def found(rows: Iterable[Mapping[str, Any]], state: str | None = None) -> list[Session]:
    chosen = [row for row in rows if state is None or row["state"] == state]
    return sorted(
        Session(r["user"], micros(r["start"]), micros(r["end"]), r["events"], r["total"])
        for r in chosen
    )


def micros(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        microseconds=1
    )


def table(spark: Any, events: Sequence[Event]) -> Any:
    from pyspark.sql import functions as F

    made = [(e.key, e.time, e.value, 0, number) for number, e in enumerate(events)]
    frame = spark.createDataFrame(made, COLUMNS.replace("timestamp", "bigint"))
    return frame.withColumn("time", F.timestamp_micros("time"))


def batch(spark: Any, events: Sequence[Event], **more: Any) -> list[Session]:
    result = job.build(settings(**more), {"from": table(spark, events)})
    return found(row.asDict() for row in result.collect())


def scattered(count: int, users: int, span: int, disorder: int, seed: int = 1) -> list[Event]:
    """In the order they come: each up to `disorder` later than it happened."""
    some = random.Random(seed)
    made = []
    for _ in range(count):
        time = NOON + some.randrange(span)
        sent = time + some.randrange(disorder)
        made.append((sent, Event(f"user-{some.randrange(users)}", time, some.randrange(10))))
    return [event for _, event in sorted(made)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_session_ends_by_a_pause_longer_than_the_gap(spark, kind):
    """A user who comes back after forty minutes has two; a pause of just the gap ends none, and a
    microsecond more does. Events without a time are in none."""
    events = [Event("a", at(clock), 1) for clock in ("10:00", "10:20", "11:00")]
    events += [Event("b", at("10:00")), Event("b", at("10:30"))]
    events += [Event("c", at("10:00")), Event("c", at("10:30") + 1)]
    events += [Event("d", None)]  # type: ignore[arg-type]
    assert batch(spark, events, **kind) == [
        Session("a", at("10:00"), at("10:20"), 2, 2),
        Session("a", at("11:00"), at("11:00"), 1, 1),
        Session("b", at("10:00"), at("10:30"), 2, 0),
        Session("c", at("10:00"), at("10:00"), 1, 0),
        Session("c", at("10:30") + 1, at("10:30") + 1, 1, 0),
    ]


@pytest.mark.parametrize("kind", [{}, {"emit": "updates"}, {"maxLength": "90m"}], ids=str)
def test_equal_the_oracle(spark, kind):
    events = scattered(4000, users=60, span=24 * HOUR, disorder=10 * MINUTE)
    longest = 90 * MINUTE if "maxLength" in kind else None
    assert batch(spark, events, **kind) == sorted(compute_sessions(events, 30 * MINUTE, longest))


def test_both_ways_have_the_same_columns_values_and_nulls(spark):
    """Sums as wide as Spark's, first and last by time, keys and values that are null."""
    measures = {
        "total": "sum(amount)", "least": "min(amount)", "most": "max(user)", "n": "count(amount)",
        "rows": "count(*)", "first": "first(amount)", "last": "last(amount + 1)",
        "money": "sum(cast(amount as decimal(10, 2)))", "share": "sum(amount / 4)",
    }  # fmt: skip
    events = [
        e._replace(key=e.key if e.value else None, value=None if e.value == 3 else e.value)  # type: ignore[arg-type]
        for e in scattered(500, users=9, span=12 * HOUR, disorder=MINUTE)
    ]
    events += [event._replace(value=7) for event in events[:20]]  # of the same time
    frames = [
        job.build(settings(measures=measures, **kind), {"from": table(spark, events)}).drop("state")
        for kind in ({}, {"emit": "updates"})
    ]
    assert frames[0].dtypes == frames[1].dtypes
    native, live = (sorted(map(str, frame.collect())) for frame in frames)
    assert native == live


def test_grace_as_long_as_the_gap_ends_sessions_all_the_same(spark, tmp_path):
    """Grace and gap of 30 minutes: a session ends an hour after its last event, once newer
    events of anybody show that so much time has passed; until then it goes on, and no longer.
    State holds the sessions that are open, and nothing of those that ended. What Spark drops as
    late is what `late` finds.
    """
    from pyspark.sql import functions as F

    chosen = settings()
    fed = FileStream(
        spark,
        tmp_path,
        COLUMNS,
        lambda events: job.build(chosen, {"from": events}),
        watermark="30 minutes",
        mode=job.get_output_mode(chosen),
    )
    oracle = SparkSessionModel(gap=30 * MINUTE, watermark_delay=30 * MINUTE)
    story = [
        [Event("a", at("10:00")), Event("a", at("10:20"))],
        [Event("b", at("11:00"))],  # the watermark is 10:30: 10:20 + 30 is not over
        [Event("a", at("10:40"))],  # 20 minutes late: the session goes on
        [Event("b", at("11:39"))],  # 11:09 has not passed 10:40 + 30
        [Event("b", at("11:40"))],  # 11:10 has: that session is told
        [Event("a", at("10:40")), Event("c", at("10:41"))],  # too late; its own still runs
        [Event("b", at("14:00"))],
    ]
    with fed:
        latest = None
        for events in story:
            came = fed.process_rows(rows(events))
            expected = oracle.process_batch(events, latest)
            latest = max(latest or 0, *(event.time for event in events))
            expected += oracle.process_batch([], latest)
            assert found(came) == sorted(s._replace(total=0) for s in expected)
            assert fed.state_row_count == len(oracle.open_runs)
        assert fed.dropped_row_count == len(oracle.late_events) == 1
        assert [s.events for s in found(fed.output_rows) if s.key == "a"] == [3]
    watermark = F.lit(instant(at("11:10")))
    missed = job.select_late(chosen, table(spark, story[5]), watermark).collect()
    assert [(row.user, micros(row.time)) for row in missed] == [("a", at("10:40"))]


def test_open_sessions_are_told_as_they_grow_merge_and_close_over_a_restart(spark, tmp_path):
    chosen = settings(emit="updates")
    fed = FileStream(
        spark,
        tmp_path,
        COLUMNS,
        lambda events: job.build(chosen, {"from": events}),
        watermark="30 minutes",
        mode=job.get_output_mode(chosen),
    )
    with fed:
        historic = [Event("z", 0, 1), Event("z", -1, 1)]  # late, as the first watermark is 1970
        opening = [Event("a", at("10:00"), 1), Event("a", at("10:40"), 2)]
        came = fed.process_rows(rows(historic + opening))
        assert [(row["start"].hour, row["state"]) for row in came] == [(10, "open")] * 2
        fed.restart_query()
        came = fed.process_rows(rows([Event("a", at("10:20"), 4), Event("b", at("10:50"), 1)]))
        assert found(came, "merged") == [Session("a", at("10:40"), at("10:40"), 1, 2)]
        assert found(came, "open") == [
            Session("a", at("10:00"), at("10:40"), 3, 7),
            Session("b", at("10:50"), at("10:50"), 1, 1),
        ]
        came = fed.process_rows(rows([Event("b", at("11:15"), 1)]))
        assert found(came, "open") == [Session("b", at("10:50"), at("11:15"), 2, 2)]
        late = [Event("a", at("10:45"), 9), Event("a", at("10:46"), 1)]  # the watermark is 10:45
        came = fed.process_rows(rows(late))
        assert found(came, "open") == [Session("a", at("10:00"), at("10:46"), 4, 8)]
        assert fed.dropped_row_count == 3
        came = fed.process_rows(rows([Event("c", at("12:00"), 1)]))
        assert found(came, "closed") == [Session("a", at("10:00"), at("10:46"), 4, 8)]
    missed = job.select_late(chosen, table(spark, late), instant(at("10:45"))).collect()
    assert [micros(row.time) for row in missed] == [at("10:45")]
    early = job.select_late(chosen, table(spark, historic + opening), instant(0)).collect()
    assert [micros(row.time) for row in early] == [0, -1]


def test_who_never_pauses_gets_sessions_of_the_longest_as_the_oracle_cuts_them(spark, tmp_path):
    """Events come up to 5 minutes late, less than the grace, and three users never pause."""
    chosen = settings(maxLength="1h")
    fed = FileStream(
        spark,
        tmp_path,
        COLUMNS,
        lambda events: job.build(chosen, {"from": events}),
        watermark="6 minutes",
        mode=job.get_output_mode(chosen),
    )
    events = scattered(900, users=3, span=6 * HOUR, disorder=5 * MINUTE)
    end = [Event("end", NOON + 24 * HOUR)]
    with fed:
        for number in range(3):
            fed.process_rows(rows(events[300 * number : 300 * (number + 1)]))
            if number == 1:
                fed.restart_query()
        fed.process_rows(rows(end))
        assert found(fed.output_rows) == sorted(compute_sessions(events, 30 * MINUTE, HOUR))
        assert fed.dropped_row_count == 0


def problems(columns: Mapping[str, str] | None = None, **more: Any) -> list[str]:
    known = {"user": "string", "amount": "int", "time": "timestamp"}
    return list(job.check_job(settings(**more), {"from": known if columns is None else columns}))


def test_what_the_input_lacks_is_told_with_the_nearest_name():
    assert problems() == []
    assert problems({}) == []
    assert problems(by=["usr"]) == ["by: there is no column 'usr'; did you mean 'user'?"]


def test_names_of_sessions_own_columns_are_not_given_twice():
    assert problems(measures={"end": "max(amount)"}) == [
        "measures.end: 'end' is already a column of the result; use another name"
    ]
    assert "rename the field" in problems({}, by=["start"])[0]


@pytest.mark.parametrize(
    "text", ["avg(amount)", "sum(amount) / count(1)", "count(distinct user)", "max(amount) + 1",
             "first(amount, true)", "sum()"]
)  # fmt: skip
def test_measures_that_only_spark_can_keep_are_refused_where_sessions_are_live(text):
    assert problems(measures={"m": text}) == []
    assert "only count(x), sum(x)" in problems(measures={"m": text}, emit="updates")[0]
    assert "maxLength supports only" in problems(measures={"m": text}, maxLength="8h")[0]


def test_a_longest_below_the_gap_is_refused():
    assert "maxLength is shorter than gap" in problems(maxLength="5m")[0]


def test_updates_are_told_in_update_mode_and_never_in_real_time():
    assert job.get_output_mode(settings()) == "append"
    assert job.get_output_mode(settings(maxLength="8h")) == "append"
    assert job.get_output_mode(settings(emit="updates")) == "update"
    assert "state" in (job.check_realtime(settings()) or "")


def test_measures_and_keys_of_types_that_do_not_merge_are_refused(spark: Any) -> None:
    """The second event of a user ended the job, which `check` had let pass."""
    kinds = {"user": "string", "time": "timestamp", "amount": "int", "place": "struct<x: int>"}
    columns = {"from": kinds}
    given = {"measures": {"best": "max(place)"}, "by": ["place"]}
    by, best = job.check_job(settings(**given, emit="updates"), columns)
    assert by.startswith("by: 'place' is not a plain value")
    assert "measures.best: emit: updates and maxLength do not support max of struct<x: int>" in best
    assert not list(job.check_job(settings(**given), columns))
    events = table(spark, [Event("ann", NOON, 1)])
    only_spark_knows = settings(measures={"best": "max(struct(amount, user))"}, maxLength="1h")
    assert not list(job.check_job(only_spark_knows, columns))
    with pytest.raises(PipelineError, match=r"best: .*support max of struct<amount:int,user:s"):
        job.build(only_spark_knows, {"from": events})
