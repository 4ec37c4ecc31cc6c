"""Sessions in pieces equal those of all events sorted, however the events come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.session_windows import Event, Session, compute_sessions

pa = pytest.importorskip("pyarrow")

from gateway.pipeline.jobs.pieces import (  # noqa: E402 - it imports pyarrow
    MAX_WATERMARK_US,
    SessionRules,
    SessionUpdate,
    build_piece_schema,
    find_unmergeable,
    update_sessions,
)

pytestmark = pytest.mark.needs("java17")  # what Spark runs, and the same set-up
GAP = 10


def rules(longest: int | None = None, updates: bool = False, measures: Sequence[str] = ("sum",)):
    ordered = any(kind in ("first", "last") for kind in measures)
    made = build_piece_schema([pa.string()], [pa.int64()] * len(measures), ordered)
    return SessionRules(made, 1, tuple(measures), GAP, longest, updates)


def pieces(events: Sequence[Event], rules: SessionRules) -> pa.Table:
    columns: dict[str, list[object]] = {
        "k0": [event.key for event in events],
        "start": [event.time for event in events],
        "end": [event.time for event in events],
        "events": [1] * len(events),
    }
    if rules.has_order:
        columns |= {"fp": [0] * len(events), "lp": [0] * len(events)}
        columns |= {name: [event.value for event in events] for name in ("fo", "lo")}
    columns |= {
        f"m{at}": [event.value for event in events] for at in range(len(rules.measure_kinds))
    }
    return pa.table(columns, schema=rules.schema)


def told(step: SessionUpdate, state: str) -> list[Session]:
    rows = step.sessions.to_pylist()
    found = (Session(r["k0"], r["start"], r["end"], r["events"], r["m0"] or 0)
             for r in rows if r["state"] == state)  # fmt: skip
    return sorted(found, key=lambda session: (str(session.key), session.start))


def fed(
    batches: Iterable[Sequence[Event]], rules: SessionRules, grace: int
) -> tuple[list[SessionUpdate], list[list[Event]]]:
    """The steps, as Spark takes them, until the watermark has passed all, and what came in time
    until each."""
    steps: list[SessionUpdate] = []
    timely: list[list[Event]] = [[]]
    kept, watermark, latest = None, 0, 0
    for batch in [*batches, ()]:
        passed, watermark = watermark, max(watermark, latest - grace)
        come = [event for event in batch if event.time > passed]
        timely.append([*timely[-1], *come])
        latest = max([latest, *(event.time for event in batch)])
        steps.append(update_sessions(kept, pieces(come, rules), rules, watermark))
        kept = steps[-1].open_pieces
    steps.append(update_sessions(kept, None, rules, MAX_WATERMARK_US))
    return steps, [*timely[1:], timely[-1]]


EVENTS = st.lists(
    st.builds(Event, st.sampled_from("ab"), st.integers(1, 120), st.integers(0, 9)), max_size=40
)
BATCHES = st.lists(EVENTS, max_size=6)


@given(BATCHES, st.none() | st.integers(5, 60), st.integers(0, 120), st.booleans())
def test_what_closes_is_what_all_timely_events_sorted_give(batches, longest, grace, updates):
    used = rules(longest, updates)
    steps, timely = fed(batches, used, grace)
    closed = sorted((s for each in steps for s in told(each, "closed")), key=str)
    assert closed == sorted(compute_sessions(timely[-1], GAP, longest), key=str)
    assert len(steps[-1].open_pieces) == 0
    assert steps[-1].next_close_us is None


@given(BATCHES, st.none() | st.integers(5, 60), st.integers(0, 120))
def test_a_reader_that_keeps_the_latest_row_of_each_start_knows_every_open_session(
    batches, longest, grace
):
    used = rules(longest, updates=True)
    known: dict[tuple[str, int], Session] = {}
    over: set[Session] = set()
    steps, timely = fed(batches, used, grace)
    for each, each_timely in zip(steps, timely, strict=True):
        for state in ("merged", "open", "closed"):
            for session in told(each, state):
                if state == "merged":
                    del known[session.key, session.start]
                else:
                    known[session.key, session.start] = session
        for session in told(each, "closed"):
            over.add(known.pop((session.key, session.start)))
        now = [
            session
            for session in compute_sessions(each_timely, GAP, longest)
            if session not in over
        ]
        assert sorted(known.values()) == sorted(now)


def test_a_session_that_did_not_change_is_not_told_again():
    used = rules(updates=True)
    first = update_sessions(None, pieces([Event("a", 1), Event("b", 1)], used), used, 0)
    assert len(told(first, "open")) == 2
    second = update_sessions(first.open_pieces, pieces([Event("b", 5)], used), used, 0)
    assert told(second, "open") == [Session("b", 1, 5, 2, 0)]
    assert told(second, "merged") == []


def test_a_late_event_between_two_sessions_makes_one_of_them_and_says_which_is_gone():
    used = rules(updates=True)
    first = update_sessions(None, pieces([Event("a", 1), Event("a", 20)], used), used, 0)
    second = update_sessions(first.open_pieces, pieces([Event("a", 11)], used), used, 0)
    assert told(second, "merged") == [Session("a", 20, 20, 1, 0)]
    assert told(second, "open") == [Session("a", 1, 20, 3, 0)]


@given(BATCHES, st.integers(0, 120))
def test_a_piece_a_session_is_kept_while_none_can_grow_to_the_longest(batches, grace):
    steps, timely = fed(batches, rules(longest=500), grace)
    over: list[Session] = []
    for each, come in zip(steps, timely, strict=True):
        over += told(each, "closed")
        assert len(each.open_pieces) == len(compute_sessions(come, GAP)) - len(over)


def test_of_who_never_pauses_events_are_kept_only_where_the_next_cut_is_not_certain_yet():
    steps, _ = fed([[Event("a", at)] for at in range(1, 1000)], rules(longest=60), grace=5)
    assert max(len(each.open_pieces) for each in steps) <= 8


def test_who_never_pauses_gets_a_session_after_each_longest():
    used = rules(longest=60)
    steps, timely = fed([[Event("a", 5 * at)] for at in range(1, 100)], used, grace=5)
    closed = [session for each in steps for session in told(each, "closed")]
    assert len(timely[-1]) == 99
    assert [session.start for session in closed] == list(range(5, 500, 60))
    assert {session.events for session in closed[:-1]} == {12}
    assert len(told(steps[50], "closed")) + len(told(steps[51], "closed")) <= 1


def test_a_session_is_due_where_its_pause_or_its_length_is_over_whichever_is_first():
    used = rules(longest=15)
    assert update_sessions(None, pieces([Event("a", 100)], used), used, 0).next_close_us == 110
    assert (
        update_sessions(
            None, pieces([Event("a", 100), Event("a", 108)], used), used, 0
        ).next_close_us
        == 115
    )


def test_measures_merge_and_leave_out_nulls():
    used = rules(measures=("sum", "min", "max", "count"))
    rows = {
        "k0": ["a"] * 3, "start": [1, 2, 3], "end": [1, 2, 3], "events": [1] * 3,
        "m0": [None, 5, 2], "m1": [None, 5, 2], "m2": [None, 5, 2], "m3": [0, 1, 1],
    }  # fmt: skip
    row = update_sessions(
        None, pa.table(rows, schema=used.schema), used, MAX_WATERMARK_US
    ).sessions.to_pylist()[0]
    assert [row[f"m{at}"] for at in range(4)] == [7, 2, 5, 2]
    rows |= {"m0": [None] * 3, "m1": [None] * 3, "m2": [None] * 3}
    row = update_sessions(
        None, pa.table(rows, schema=used.schema), used, MAX_WATERMARK_US
    ).sessions.to_pylist()[0]
    assert [row["m0"], row["m1"], row["m2"]] == [None] * 3


@given(st.permutations([Event("a", time, value) for value, time in enumerate([1, 1, 4, 6, 6])]))
def test_first_and_last_are_those_of_time_then_offset_in_whatever_order_they_come(events):
    used = rules(measures=("first", "last"))
    kept = None
    for event in events:
        kept = update_sessions(kept, pieces([event], used), used, 0).open_pieces
    row = update_sessions(kept, None, used, MAX_WATERMARK_US).sessions.to_pylist()[0]
    assert (row["m0"], row["m1"]) == (0, 4)


def test_keys_of_several_columns_and_null_are_keys():
    made = build_piece_schema([pa.string(), pa.int64()], [], False)
    used = SessionRules(made, 2, (), GAP, None, False)
    rows = {
        "k0": ["a", "a", None, None], "k1": [1, 2, 1, 1],
        "start": [1, 2, 3, 4], "end": [1, 2, 3, 4], "events": [1] * 4,
    }  # fmt: skip
    found = update_sessions(
        None, pa.table(rows, schema=made), used, MAX_WATERMARK_US
    ).sessions.to_pylist()
    assert sorted((str(r["k0"]), r["k1"], r["events"]) for r in found) == [
        ("None", 1, 2), ("a", 1, 1), ("a", 2, 1),
    ]  # fmt: skip


def merged(kind: str, of: pa.DataType, *values: object):
    """What a measure of a session of such events is."""
    used = SessionRules(
        build_piece_schema([pa.string()], [of], False), 1, (kind,), GAP, None, False
    )
    times = [*range(1, len(values) + 1)]
    columns = {"k0": ["a"] * len(times), "start": times, "end": times, "events": [1] * len(times)}
    made = pa.table({**columns, "m0": pa.array(values, of)}, schema=used.schema)
    (row,) = update_sessions(None, made, used, MAX_WATERMARK_US).sessions.to_pylist()
    return row["m0"]


BIG = 2**62
CENTS = pa.decimal128(38, 2)


def test_a_sum_that_overflows_fails():
    """It wrapped: the sum of two large numbers was negative."""
    with pytest.raises(OverflowError, match="out of the range of int64"):
        merged("sum", pa.int64(), BIG, BIG)
    with pytest.raises(OverflowError, match=r"out of the range of decimal128\(38, 2\)"):
        merged("sum", CENTS, Decimal("9e35"), Decimal("9e35"))
    assert merged("sum", pa.int64(), BIG, BIG - 1) == 2**63 - 1
    assert merged("sum", pa.int64(), BIG, BIG, -BIG, None) == BIG
    assert merged("sum", CENTS, Decimal("9e35"), Decimal("9e34"), None) == Decimal("9.9e35")
    assert merged("sum", pa.int64(), None, None) is None


def test_nan_is_greater_than_any_number():
    """As in Spark; the greatest of 1 and NaN was 1."""
    nan = math.nan
    assert math.isnan(merged("max", pa.float64(), 1.0, nan, None))
    assert math.isnan(merged("max", pa.float32(), nan, nan))
    assert merged("max", pa.float64(), 1.0, 2.0, None) == 2.0
    assert merged("max", pa.float64(), None, None) is None
    assert merged("min", pa.float64(), nan, 1.0) == 1.0
    assert math.isnan(merged("min", pa.float64(), nan, None))


def test_types_that_do_not_merge_are_told_before_any_event():
    """A second event of the same key ended the job: Arrow has no `max` of structs."""
    nested = pa.struct([("a", pa.int64())])
    keys = [pa.string(), nested, pa.list_(pa.int64())]
    kinds = ("max", "first", "count", "sum", "min", "max")
    values = [nested, nested, pa.int64(), pa.month_day_nano_interval(), pa.string(), pa.bool_()]
    used = SessionRules(build_piece_schema(keys, values, True), 3, kinds, GAP, None, False)
    assert find_unmergeable(used) == ["k1", "k2", "m0", "m3"]
