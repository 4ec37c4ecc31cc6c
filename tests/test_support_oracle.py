"""An oracle that cannot fail is a defect: every kind of difference is made and must be found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import (
    AckedRecord,
    FindingKind,
    GapEvent,
    ReceivedRecord,
    StreamDiffers,
    StreamOracle,
    parse_events,
    read_records,
    read_topic,
)
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.log.record import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
HOLES = {4, 5, 9}


def acked(tp: TopicPartition, offset: int, life: str = "") -> AckedRecord:
    return AckedRecord(tp, offset, f"k{offset % 3}".encode(), f"{tp}@{offset}{life}".encode())


def got(record: AckedRecord) -> ReceivedRecord:
    return ReceivedRecord(record.tp, record.offset, record.value, record.key)


def gap(start: int, end: int, reason: str = "retention") -> GapEvent:
    return GapEvent(P0, start, end, reason)


def log(tp: TopicPartition = P0, count: int = 20) -> list[AckedRecord]:
    """Offsets 0 to 19 but for three holes, as transactions and compaction leave them."""
    return [acked(tp, offset) for offset in range(count) if offset not in HOLES]


def oracle(records: Sequence[AckedRecord] = ()) -> StreamOracle:
    made = StreamOracle()
    made.add_acked(records or log())
    return made


def stream(*leave_out: int, records: Sequence[AckedRecord] = ()) -> list[ReceivedRecord]:
    return [got(each) for each in records or log() if each.offset not in leave_out]


def kinds(check: Callable[[], None]) -> set[FindingKind]:
    with pytest.raises(StreamDiffers) as caught:
        check()
    return caught.value.kinds


# -- what is right passes -------------------------------------------------------------


def test_all_of_it_in_order_passes() -> None:
    oracle().check_items(stream(), start={P0: 0})


def test_partitions_may_mix_as_they_like() -> None:
    both = [got(each) for pair in zip(log(P0), log(P1), strict=True) for each in reversed(pair)]
    oracle(log(P0) + log(P1)).check_items(both, start={P0: 0, P1: 0})


def test_an_unknown_start_begins_with_the_first_thing_heard() -> None:
    oracle().check_items(stream(0, 1, 2))
    oracle().check_items([gap(0, 3), *stream(0, 1, 2)])
    oracle().check_items([], start=None)


def test_an_end_given_is_where_the_expectation_ends() -> None:
    oracle().check_items(stream(*range(12, 20)), start={P0: 0}, end={P0: 12})


@pytest.mark.parametrize("start", [3, 4, 5, 6])
@pytest.mark.parametrize("end", [9, 10])
def test_the_bounds_of_a_gap_may_lie_anywhere_in_a_hole(start: int, end: int) -> None:
    """Last heard 2 or 3; missing 6, 7, 8 (and 3); 4, 5 and 9 are no records."""
    missing = [offset for offset in (3, 6, 7, 8) if offset >= start]
    items = stream(*missing)
    at = next(i for i, item in enumerate(items) if (item.offset or 0) > 8)
    items_with_gap = [*items[:at], gap(start, end), *items[at:]]
    oracle().check_items(items_with_gap, start={P0: 0})
    oracle().check_items(items, [gap(start, end)], start={P0: 0})


def test_a_filtered_view_expects_only_what_is_of_it() -> None:
    def mine(record: AckedRecord) -> bool:
        return record.key == b"k1"

    items = [got(each) for each in log() if mine(each)]
    oracle().check_items(items, start={P0: 0}, view=mine)
    assert kinds(lambda: oracle().check_items(items[:-1], start={P0: 0}, view=mine)) == {
        FindingKind.LOST
    }
    extra = kinds(lambda: oracle().check_items(stream(), start={P0: 0}, view=mine))
    assert extra == {FindingKind.OUTSIDE}


def test_values_alone_are_enough_to_know_a_record() -> None:
    """The format `value` tells neither partition nor offset."""
    bare = [ReceivedRecord(None, None, item.value) for item in stream()]
    oracle().check_items(bare, start={P0: 0})
    assert kinds(lambda: oracle().check_items(bare[1:], start={P0: 0})) == {FindingKind.LOST}
    assert kinds(lambda: oracle().check_items([*bare, bare[3]], start={P0: 0})) == {
        FindingKind.DUPLICATE
    }
    strange = [*bare, ReceivedRecord(None, None, b"strange")]
    assert kinds(lambda: oracle().check_items(strange, start={P0: 0})) == {FindingKind.PHANTOM}


def test_a_compacted_record_may_be_missing_if_its_key_came_again() -> None:
    oracle().check_items(stream(0, 1), start={P0: 0}, compacted=True)
    last = kinds(lambda: oracle().check_items(stream(19), start={P0: 0}, compacted=True))
    assert last == {FindingKind.LOST}


# -- what is wrong is found -----------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 8, 10, 19])
def test_a_loss_is_found_wherever_it_is(offset: int) -> None:
    assert kinds(lambda: oracle().check_items(stream(offset), start={P0: 0})) == {FindingKind.LOST}


def test_a_silent_partition_is_a_loss() -> None:
    assert kinds(lambda: oracle().check_items([], start={P0: 0})) == {FindingKind.LOST}


def test_a_duplicate_is_found() -> None:
    items = stream()
    twice = [*items[:8], items[7], *items[8:]]
    assert kinds(lambda: oracle().check_items(twice, start={P0: 0})) == {FindingKind.DUPLICATE}


def test_a_changed_order_is_found() -> None:
    items = stream()
    items[7], items[8] = items[8], items[7]
    assert FindingKind.REORDERED in kinds(lambda: oracle().check_items(items, start={P0: 0}))


def test_a_record_before_the_start_is_found() -> None:
    assert kinds(lambda: oracle().check_items(stream(), start={P0: 1})) == {FindingKind.REORDERED}


@pytest.mark.parametrize("offset", [4, 20, 99])
def test_a_phantom_is_found(offset: int) -> None:
    items = sorted([*stream(), got(acked(P0, offset))], key=lambda item: item.offset or 0)
    assert kinds(lambda: oracle().check_items(items, start={P0: 0})) == {FindingKind.PHANTOM}


def test_a_phantom_partition_is_found() -> None:
    items = [*stream(), got(acked(P1, 0))]
    assert kinds(lambda: oracle().check_items(items, start={P0: 0})) == {FindingKind.PHANTOM}


@pytest.mark.parametrize("change", [{"value": b"other"}, {"value": None}, {"key": b"other"}])
def test_another_value_or_key_at_an_offset_is_found(change: dict[str, bytes | None]) -> None:
    items = stream()
    items[3] = items[3]._replace(**change)
    assert kinds(lambda: oracle().check_items(items, start={P0: 0})) == {FindingKind.ALTERED}


def test_an_aborted_record_is_found() -> None:
    judge = oracle()
    judge.add_aborted([acked(P0, 4).value or b""])
    items = [*stream()[:4], got(acked(P0, 4)), *stream()[4:]]
    assert kinds(lambda: judge.check_items(items, start={P0: 0})) == {FindingKind.ABORTED}
    bare = [ReceivedRecord(None, None, item.value) for item in items]
    assert kinds(lambda: judge.check_items(bare, start={P0: 0})) == {FindingKind.ABORTED}


# Missing are 6, 7, 8 after the holes 4 and 5; 3 and 10 are the records around.
@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ([gap(7, 9)], FindingKind.LOST),
        ([gap(6, 8)], FindingKind.LOST),
        ([gap(3, 9)], FindingKind.ARRIVED),
        ([gap(0, 9)], FindingKind.ARRIVED),
        ([gap(6, 11)], FindingKind.ARRIVED),
        ([gap(6, 9), gap(6, 9)], FindingKind.REPEATED),
        ([gap(6, 8), gap(7, 9)], FindingKind.REPEATED),
        ([], FindingKind.LOST),
    ],
)
def test_a_wrong_gap_is_found(told: list[GapEvent], kind: FindingKind) -> None:
    items = stream(6, 7, 8)
    in_stream = [*items[:4], *told, *items[4:]]
    assert kind in kinds(lambda: oracle().check_items(in_stream, start={P0: 0}))
    oracle().check_items([*items[:4], gap(6, 9), *items[4:]], start={P0: 0})


def test_a_gap_made_of_a_jump_of_offsets_is_found() -> None:
    """Markers and compaction leave holes; no record was there to be missed."""
    items = stream()
    told = [*items[:4], gap(4, 6), *items[4:]]
    assert kinds(lambda: oracle().check_items(told, start={P0: 0})) == {FindingKind.EMPTY}


def test_a_gap_beyond_what_kafka_deleted_is_found() -> None:
    items = [gap(0, 8), *stream(*range(8))]
    oracle().check_items(items, start={P0: 0}, log_start={P0: 8})
    found = kinds(lambda: oracle().check_items(items, start={P0: 0}, log_start={P0: 7}))
    assert found == {FindingKind.BOUNDS}


def test_a_gap_told_after_what_follows_it_is_found() -> None:
    items = stream(6, 7, 8)
    assert FindingKind.LOST in kinds(
        lambda: oracle().check_items([*items, gap(6, 9)], start={P0: 0})
    )


# -- logs that go back ----------------------------------------------------------------


def twice(offset: int) -> tuple[StreamOracle, list[AckedRecord]]:
    """A log of twenty that lost its end from `offset` on and was written on to 25."""
    judge = oracle()
    judge.mark_truncated(P0, offset)
    later = [acked(P0, o, "'") for o in range(offset, 25)]
    judge.add_acked(later)
    return judge, later


def test_a_recreated_topic_is_read_from_its_start_after_the_gap() -> None:
    judge, later = twice(0)
    tail = [got(each) for each in later]
    judge.check_items([*stream(), gap(20, 0, "recreated"), *tail], start={P0: 0})
    assert FindingKind.LOST in kinds(lambda: judge.check_items(stream(), start={P0: 0}))
    untold = kinds(lambda: judge.check_items([*stream(), *tail], start={P0: 0}))
    assert FindingKind.LOST in untold and len(untold) > 1
    late = [*stream(), gap(20, 3, "recreated"), *tail[3:]]
    assert FindingKind.BOUNDS in kinds(lambda: judge.check_items(late, start={P0: 0}))


def test_a_truncated_log_is_read_on_from_the_divergence() -> None:
    judge, later = twice(12)
    tail = [got(each) for each in later]
    judge.check_items([*stream(), gap(20, 12, "truncated"), *tail], start={P0: 0})
    far = [*stream(), gap(20, 11, "truncated"), *stream()[-8:-7], *tail]
    assert FindingKind.BOUNDS in kinds(lambda: judge.check_items(far, start={P0: 0}))
    lossy = [*stream(), gap(20, 12, "truncated"), *tail[1:]]
    assert kinds(lambda: judge.check_items(lossy, start={P0: 0})) == {FindingKind.LOST}


def test_a_reader_below_the_divergence_is_told_nothing() -> None:
    judge, later = twice(12)
    items = [*stream(*range(12, 20)), *(got(each) for each in later)]
    judge.check_items(items, start={P0: 0})
    assert kinds(lambda: judge.check_items(items[:8] + items[9:], start={P0: 0})) == {
        FindingKind.LOST
    }


def test_a_log_that_did_not_go_back_must_not_be_told_to() -> None:
    told = [*stream(), gap(20, 0, "recreated")]
    assert kinds(lambda: oracle().check_items(told, start={P0: 0})) == {FindingKind.BOUNDS}


# -- any mistake in any stream --------------------------------------------------------


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[AckedRecord], list[ReceivedRecord | GapEvent]]:
    """A log with holes, and a faultless stream of it with a gap for each run left out."""
    offsets = draw(st.lists(st.integers(0, 60), min_size=3, unique=True).map(sorted))
    records = [acked(P0, offset) for offset in offsets]
    kept = draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    items: list[ReceivedRecord | GapEvent] = []
    for record, keep in zip(records, kept, strict=True):
        if keep:
            items.append(got(record))
        elif items and isinstance(items[-1], GapEvent):
            items[-1] = items[-1]._replace(end=record.offset + 1)
        else:
            items.append(gap(record.offset, record.offset + 1))
    return records, items


@given(streams(), st.data())
def test_a_faultless_stream_passes_and_any_mistake_is_found(made, data):
    records, items = made
    judge = oracle(records)
    judge.check_items(items, start={P0: 0})
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
        judge.check_items(broken, start={P0: 0})


# -- the report, and events -----------------------------------------------------------


def test_the_report_shows_ten_differences_of_each_partition() -> None:
    records = [acked(P0, offset) for offset in range(0, 100)] + [acked(P1, 0)]
    odd = [got(each) for each in records if each.tp == P1 or each.offset % 2]
    with pytest.raises(StreamDiffers) as caught:
        oracle(records).check_items([*odd, got(acked(P1, 7))], start={P0: 0, P1: 0})
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
    assert parse_events(events) == [
        ReceivedRecord(P0, 3, b"\xff", b"k0", "b"),
        ReceivedRecord(P0, 7, None, b"k0", "c"),
        *[gap(4, 6)] * 3,
    ]
    assert parse_events([*events[:1], {"event": "message", "id": "", "data": "text"}], "value") == [
        ReceivedRecord(None, None, b"text", None, "")
    ]
    with pytest.raises(AssertionError, match="said error"):
        parse_events([{"event": "error", "id": "", "data": "no"}])


# -- real Kafka -----------------------------------------------------------------------


async def test_what_kafka_acknowledged_is_what_an_independent_reader_finds(kafka, topic):
    name = topic(partitions=3)
    async with StreamOracle(kafka.bootstrap_servers) as judge:
        await judge.produce_records(name, 50)
        await judge.produce_transaction(name, 20)
        gone = await judge.produce_transaction(name, 20, commit=False)
        await judge.produce_records(name, 10, key=b"one", fields={"region": "eu"})
        truth = await read_records(kafka.bootstrap_servers, name, min_records=80)
        assert truth == judge.list_acked()
        assert len(truth) == 80
        start = judge.get_start_offsets(name, 3) | {TopicPartition(name, p): 0 for p in range(3)}
        items = [got(record) for record in truth]
        judge.check_items(items, start=start)
        raw = await read_topic(kafka.bootstrap_servers, name, isolation="read_uncommitted")
        assert sum(map(len, raw.values())) == 100
        leaked = sorted([*items, *map(got, gone)], key=lambda item: (item.tp, item.offset))
        assert kinds(lambda: judge.check_items(leaked, start=start)) == {FindingKind.ABORTED}


async def test_an_open_transaction_counts_once_it_is_committed(kafka, topic):
    name = topic()
    async with StreamOracle(kafka.bootstrap_servers) as judge:
        async with judge.open_transaction() as opened:
            await opened.send_records(name, 5)
            await judge.produce_records(name, 5)
            assert len(judge.list_acked()) == 5
            assert await read_records(kafka.bootstrap_servers, name) == []
            await opened.commit()
        assert len(judge.list_acked()) == 10
        acknowledged = judge.list_acked()
        assert (
            await read_records(kafka.bootstrap_servers, name, min_records=len(acknowledged))
            == acknowledged
        )


async def test_a_write_without_an_answer_may_arrive_or_not(kafka, topic):
    """Too large for the topic: refused by the broker, so it did not arrive; it might have."""
    name = topic(configs={"max.message.bytes": "2000"})
    async with StreamOracle(kafka.bootstrap_servers) as judge:
        large = {"pad": "x" * 5000}
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            assert await judge.produce_records(name, 1, fields=large) == []
        await judge.produce_records(name, 1)
        truth = await read_records(kafka.bootstrap_servers, name)
        assert truth == judge.list_acked()
        judge.check_items([got(record) for record in truth], start={TopicPartition(name, 0): 0})


async def test_a_reader_that_aiokafka_calls_cancelled_begins_again(monkeypatch):
    """It ended the whole run of the fault bench, since nobody had cancelled anything."""
    answers: list[list[AckedRecord] | None] = [None, [acked(P0, 0)]]

    async def read_once(*_: object) -> list[AckedRecord]:
        answer = answers.pop(0)
        if answer is None:
            raise asyncio.CancelledError
        return answer

    monkeypatch.setattr("support.oracle._read_committed_records", read_once)
    assert await read_records("", "orders") == [acked(P0, 0)]
    monkeypatch.setattr("support.oracle._read_committed_records", lambda *_: asyncio.sleep(60))
    reading = asyncio.create_task(read_records("", "orders"))
    await asyncio.sleep(0)  # it has begun
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
