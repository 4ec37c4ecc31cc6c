"""An oracle that cannot fail is a defect: every kind of difference is made and must be found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers import Broker
from support.oracle import (
    Acked,
    GapEvent,
    Kind,
    Oracle,
    Received,
    StreamDiffers,
    heard,
    read_records,
    read_topic,
)
from support.until import PATIENCE

from gateway.core.log.record import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
HOLES = {4, 5, 9}


def acked(tp: TopicPartition, offset: int, life: str = "") -> Acked:
    return Acked(tp, offset, f"k{offset % 3}".encode(), f"{tp}@{offset}{life}".encode())


def got(record: Acked) -> Received:
    return Received(record.tp, record.offset, record.value, record.key)


def gap(start: int, end: int, reason: str = "retention") -> GapEvent:
    return GapEvent(P0, start, end, reason)


def log(tp: TopicPartition = P0, count: int = 20) -> list[Acked]:
    """Offsets 0 to 19 but for three holes, as transactions and compaction leave them."""
    return [acked(tp, offset) for offset in range(count) if offset not in HOLES]


def oracle(records: Sequence[Acked] = ()) -> Oracle:
    made = Oracle()
    made.adopt(records or log())
    return made


def stream(*leave_out: int, records: Sequence[Acked] = ()) -> list[Received]:
    return [got(each) for each in records or log() if each.offset not in leave_out]


def kinds(check: Callable[[], None]) -> set[Kind]:
    with pytest.raises(StreamDiffers) as caught:
        check()
    return caught.value.kinds


# -- what is right passes -------------------------------------------------------------


def test_all_of_it_in_order_passes() -> None:
    oracle().check(stream(), start={P0: 0})


def test_partitions_may_mix_as_they_like() -> None:
    both = [got(each) for pair in zip(log(P0), log(P1), strict=True) for each in reversed(pair)]
    oracle(log(P0) + log(P1)).check(both, start={P0: 0, P1: 0})


def test_an_unknown_start_begins_with_the_first_thing_heard() -> None:
    oracle().check(stream(0, 1, 2))
    oracle().check([gap(0, 3), *stream(0, 1, 2)])
    oracle().check([], start=None)


def test_an_end_given_is_where_the_expectation_ends() -> None:
    oracle().check(stream(*range(12, 20)), start={P0: 0}, end={P0: 12})


@pytest.mark.parametrize("start", [3, 4, 5, 6])
@pytest.mark.parametrize("end", [9, 10])
def test_the_bounds_of_a_gap_may_lie_anywhere_in_a_hole(start: int, end: int) -> None:
    """Last heard 2 or 3; missing 6, 7, 8 (and 3); 4, 5 and 9 are no records."""
    missing = [offset for offset in (3, 6, 7, 8) if offset >= start]
    items = stream(*missing)
    at = next(i for i, item in enumerate(items) if (item.offset or 0) > 8)
    items_with_gap = [*items[:at], gap(start, end), *items[at:]]
    oracle().check(items_with_gap, start={P0: 0})
    oracle().check(items, [gap(start, end)], start={P0: 0})


def test_a_filtered_view_expects_only_what_is_of_it() -> None:
    def mine(record: Acked) -> bool:
        return record.key == b"k1"

    items = [got(each) for each in log() if mine(each)]
    oracle().check(items, start={P0: 0}, view=mine)
    assert kinds(lambda: oracle().check(items[:-1], start={P0: 0}, view=mine)) == {Kind.LOST}
    extra = kinds(lambda: oracle().check(stream(), start={P0: 0}, view=mine))
    assert extra == {Kind.OUTSIDE}


def test_values_alone_are_enough_to_know_a_record() -> None:
    """The format `value` tells neither partition nor offset."""
    bare = [Received(None, None, item.value) for item in stream()]
    oracle().check(bare, start={P0: 0})
    assert kinds(lambda: oracle().check(bare[1:], start={P0: 0})) == {Kind.LOST}
    assert kinds(lambda: oracle().check([*bare, bare[3]], start={P0: 0})) == {Kind.DUPLICATE}
    strange = [*bare, Received(None, None, b"strange")]
    assert kinds(lambda: oracle().check(strange, start={P0: 0})) == {Kind.PHANTOM}


def test_a_compacted_record_may_be_missing_if_its_key_came_again() -> None:
    oracle().check(stream(0, 1), start={P0: 0}, compacted=True)
    last = kinds(lambda: oracle().check(stream(19), start={P0: 0}, compacted=True))
    assert last == {Kind.LOST}


# -- what is wrong is found -----------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 8, 10, 19])
def test_a_loss_is_found_wherever_it_is(offset: int) -> None:
    assert kinds(lambda: oracle().check(stream(offset), start={P0: 0})) == {Kind.LOST}


def test_a_silent_partition_is_a_loss() -> None:
    assert kinds(lambda: oracle().check([], start={P0: 0})) == {Kind.LOST}


def test_a_duplicate_is_found() -> None:
    items = stream()
    twice = [*items[:8], items[7], *items[8:]]
    assert kinds(lambda: oracle().check(twice, start={P0: 0})) == {Kind.DUPLICATE}


def test_a_changed_order_is_found() -> None:
    items = stream()
    items[7], items[8] = items[8], items[7]
    assert Kind.REORDERED in kinds(lambda: oracle().check(items, start={P0: 0}))


def test_a_record_before_the_start_is_found() -> None:
    assert kinds(lambda: oracle().check(stream(), start={P0: 1})) == {Kind.REORDERED}


@pytest.mark.parametrize("offset", [4, 20, 99])
def test_a_phantom_is_found(offset: int) -> None:
    items = sorted([*stream(), got(acked(P0, offset))], key=lambda item: item.offset or 0)
    assert kinds(lambda: oracle().check(items, start={P0: 0})) == {Kind.PHANTOM}


def test_a_phantom_partition_is_found() -> None:
    items = [*stream(), got(acked(P1, 0))]
    assert kinds(lambda: oracle().check(items, start={P0: 0})) == {Kind.PHANTOM}


@pytest.mark.parametrize("change", [{"value": b"other"}, {"value": None}, {"key": b"other"}])
def test_another_value_or_key_at_an_offset_is_found(change: dict[str, bytes | None]) -> None:
    items = stream()
    items[3] = items[3]._replace(**change)
    assert kinds(lambda: oracle().check(items, start={P0: 0})) == {Kind.ALTERED}


def test_an_aborted_record_is_found() -> None:
    judge = oracle()
    judge.forbid([acked(P0, 4).value or b""])
    items = [*stream()[:4], got(acked(P0, 4)), *stream()[4:]]
    assert kinds(lambda: judge.check(items, start={P0: 0})) == {Kind.ABORTED}
    bare = [Received(None, None, item.value) for item in items]
    assert kinds(lambda: judge.check(bare, start={P0: 0})) == {Kind.ABORTED}


# Missing are 6, 7, 8 after the holes 4 and 5; 3 and 10 are the records around.
@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ([gap(7, 9)], Kind.LOST),
        ([gap(6, 8)], Kind.LOST),
        ([gap(3, 9)], Kind.ARRIVED),
        ([gap(0, 9)], Kind.ARRIVED),
        ([gap(6, 11)], Kind.ARRIVED),
        ([gap(6, 9), gap(6, 9)], Kind.REPEATED),
        ([gap(6, 8), gap(7, 9)], Kind.REPEATED),
        ([], Kind.LOST),
    ],
)
def test_a_wrong_gap_is_found(told: list[GapEvent], kind: Kind) -> None:
    items = stream(6, 7, 8)
    in_stream = [*items[:4], *told, *items[4:]]
    assert kind in kinds(lambda: oracle().check(in_stream, start={P0: 0}))
    oracle().check([*items[:4], gap(6, 9), *items[4:]], start={P0: 0})


def test_a_gap_made_of_a_jump_of_offsets_is_found() -> None:
    """Markers and compaction leave holes; no record was there to be missed."""
    items = stream()
    told = [*items[:4], gap(4, 6), *items[4:]]
    assert kinds(lambda: oracle().check(told, start={P0: 0})) == {Kind.EMPTY}


def test_a_gap_beyond_what_kafka_deleted_is_found() -> None:
    items = [gap(0, 8), *stream(*range(8))]
    oracle().check(items, start={P0: 0}, log_start={P0: 8})
    found = kinds(lambda: oracle().check(items, start={P0: 0}, log_start={P0: 7}))
    assert found == {Kind.BOUNDS}


def test_a_gap_told_after_what_follows_it_is_found() -> None:
    items = stream(6, 7, 8)
    assert Kind.LOST in kinds(lambda: oracle().check([*items, gap(6, 9)], start={P0: 0}))


# -- logs that go back ----------------------------------------------------------------


def twice(offset: int) -> tuple[Oracle, list[Acked]]:
    """A log of twenty that lost its end from `offset` on and was written on to 25."""
    judge = oracle()
    judge.truncated(P0, offset)
    later = [acked(P0, o, "'") for o in range(offset, 25)]
    judge.adopt(later)
    return judge, later


def test_a_recreated_topic_is_read_from_its_start_after_the_gap() -> None:
    judge, later = twice(0)
    tail = [got(each) for each in later]
    judge.check([*stream(), gap(20, 0, "recreated"), *tail], start={P0: 0})
    assert Kind.LOST in kinds(lambda: judge.check(stream(), start={P0: 0}))
    untold = kinds(lambda: judge.check([*stream(), *tail], start={P0: 0}))
    assert Kind.LOST in untold and len(untold) > 1
    late = [*stream(), gap(20, 3, "recreated"), *tail[3:]]
    assert Kind.BOUNDS in kinds(lambda: judge.check(late, start={P0: 0}))


def test_a_truncated_log_is_read_on_from_the_divergence() -> None:
    judge, later = twice(12)
    tail = [got(each) for each in later]
    judge.check([*stream(), gap(20, 12, "truncated"), *tail], start={P0: 0})
    far = [*stream(), gap(20, 11, "truncated"), *stream()[-8:-7], *tail]
    assert Kind.BOUNDS in kinds(lambda: judge.check(far, start={P0: 0}))
    lossy = [*stream(), gap(20, 12, "truncated"), *tail[1:]]
    assert kinds(lambda: judge.check(lossy, start={P0: 0})) == {Kind.LOST}


def test_a_reader_below_the_divergence_is_told_nothing() -> None:
    judge, later = twice(12)
    items = [*stream(*range(12, 20)), *(got(each) for each in later)]
    judge.check(items, start={P0: 0})
    assert kinds(lambda: judge.check(items[:8] + items[9:], start={P0: 0})) == {Kind.LOST}


def test_a_log_that_did_not_go_back_must_not_be_told_to() -> None:
    told = [*stream(), gap(20, 0, "recreated")]
    assert kinds(lambda: oracle().check(told, start={P0: 0})) == {Kind.BOUNDS}


# -- any mistake in any stream --------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Acked], list[Received | GapEvent]]:
    """A log with holes, and a faultless stream of it with a gap for each run left out."""
    offsets = draw(st.lists(st.integers(0, 60), min_size=3, unique=True).map(sorted))
    records = [acked(P0, offset) for offset in offsets]
    kept = draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    items: list[Received | GapEvent] = []
    for record, keep in zip(records, kept, strict=True):
        if keep:
            items.append(got(record))
        elif items and isinstance(items[-1], GapEvent):
            items[-1] = items[-1]._replace(end=record.offset + 1)
        else:
            items.append(gap(record.offset, record.offset + 1))
    return records, items


@given(streams(), st.data())
def test_a_faultless_stream_passes_and_any_mistake_is_found(
    made: tuple[list[Acked], list[Received | GapEvent]], data: st.DataObject
) -> None:
    records, items = made
    judge = oracle(records)
    judge.check(items, start={P0: 0})
    at = data.draw(st.integers(0, len(items) - 1))
    wrong = data.draw(st.sampled_from(["drop", "repeat", "swap", "phantom"]))
    if wrong == "drop":
        broken = items[:at] + items[at + 1 :]
    elif wrong == "repeat":
        broken = [*items[: at + 1], *items[at:]]
    elif wrong == "swap" and at + 1 < len(items):
        broken = [*items[:at], items[at + 1], items[at], *items[at + 2 :]]
    else:
        broken = [*items[:at], got(acked(P0, 61)), *items[at:]]
    with pytest.raises(StreamDiffers):
        judge.check(broken, start={P0: 0})


# -- the report, and events -----------------------------------------------------------


def test_the_report_shows_ten_differences_of_each_partition() -> None:
    records = [acked(P0, offset) for offset in range(0, 100)] + [acked(P1, 0)]
    odd = [got(each) for each in records if each.tp == P1 or each.offset % 2]
    with pytest.raises(StreamDiffers) as caught:
        oracle(records).check([*odd, got(acked(P1, 7))], start={P0: 0, P1: 0})
    text = str(caught.value)
    assert "orders-0: 50 differences" in text
    assert "and 40 more" in text
    assert "1 records (0) before offset 1" in text
    assert "orders-1: 1 differences" in text
    assert text.count("\n") == 1 + 10 + 1 + 2


def test_events_of_a_stream_are_heard_as_records_and_gaps() -> None:
    place = {"topic": "orders", "partition": 0}
    record = place | {"offset": 3, "key": "k0", "value": {"base64": "/w=="}, "headers": []}
    missing = place | {"from": 4, "to": 6, "reason": "retention"}
    events = [
        {"event": "begin", "id": "a", "data": "{}"},
        {"event": "message", "id": "b", "data": json.dumps(record)},
        {"event": "delete", "id": "c", "data": json.dumps(record | {"value": None, "offset": 7})},
        {"event": "gap", "id": "d", "data": json.dumps(missing)},
        {"event": "gap", "id": "e", "data": json.dumps({"gaps": [missing, missing]})},
    ]
    assert heard(events) == [
        Received(P0, 3, b"\xff", b"k0", "b"),
        Received(P0, 7, None, b"k0", "c"),
        *[gap(4, 6)] * 3,
    ]
    assert heard([*events[:1], {"event": "message", "id": "", "data": "text"}], "value") == [
        Received(None, None, b"text", None, "")
    ]
    with pytest.raises(AssertionError, match="said error"):
        heard([{"event": "error", "id": "", "data": "no"}])


# -- real Kafka -----------------------------------------------------------------------


async def test_what_kafka_acknowledged_is_what_an_independent_reader_finds(
    kafka: Broker, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    async with Oracle(kafka.servers) as judge:
        await judge.produce(name, 50)
        await judge.produce_transaction(name, 20)
        gone = await judge.produce_transaction(name, 20, commit=False)
        await judge.produce(name, 10, key=b"one", fields={"region": "eu"})
        truth = await read_records(kafka.servers, name, least=80)
        assert truth == judge.acknowledged()
        assert len(truth) == 80
        start = judge.start_of(name, 3) | {TopicPartition(name, p): 0 for p in range(3)}
        items = [got(record) for record in truth]
        judge.check(items, start=start)
        raw = await read_topic(kafka.servers, name, isolation="read_uncommitted")
        assert sum(map(len, raw.values())) == 100
        leaked = sorted([*items, *map(got, gone)], key=lambda item: (item.tp, item.offset))
        assert kinds(lambda: judge.check(leaked, start=start)) == {Kind.ABORTED}


async def test_an_open_transaction_counts_once_it_is_committed(
    kafka: Broker, topic: Callable[..., str]
) -> None:
    name = topic()
    async with Oracle(kafka.servers) as judge:
        async with judge.transaction() as opened:
            await opened.send(name, 5)
            await judge.produce(name, 5)
            assert len(judge.acknowledged()) == 5
            assert await read_records(kafka.servers, name) == []
            await opened.commit()
        assert len(judge.acknowledged()) == 10
        acknowledged = judge.acknowledged()
        assert await read_records(kafka.servers, name, least=len(acknowledged)) == acknowledged


async def test_a_write_without_an_answer_may_arrive_or_not(
    kafka: Broker, topic: Callable[..., str]
) -> None:
    """Too large for the topic: refused by the broker, so it did not arrive; it might have."""
    name = topic(configs={"max.message.bytes": "2000"})
    async with Oracle(kafka.servers) as judge:
        large = {"pad": "x" * 5000}
        async with asyncio.timeout(PATIENCE):
            assert await judge.produce(name, 1, fields=large) == []
        await judge.produce(name, 1)
        truth = await read_records(kafka.servers, name)
        assert truth == judge.acknowledged()
        judge.check([got(record) for record in truth], start={TopicPartition(name, 0): 0})
