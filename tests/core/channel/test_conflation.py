"""What is left of records where only the latest of each key counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshot_model import KEYS, PARTITIONS, KeyedTopic, SnapshotClient
from support.snapshot_model import list_keyless as keyless_of

from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.conflation import (
    KEY_OVERHEAD_BYTES,
    MAX_SCAN_ENTRIES,
    RECORD_OVERHEAD_BYTES,
    KeyWindow,
    LatestOffsets,
    buffered_size,
    conflate,
)
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SlowClientPolicy, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog, estimate_entry_size
from gateway.core.log.record import (
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    Record,
    Skip,
    TopicPartition,
)

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OTHER = TopicPartition("stock", 0)
CYCLES = 12  # how often all keys of a slow client's table are written


def record(offset: int, key: bytes | None, value: bytes | None = b"v", tp: TopicPartition = A):
    return Record(tp, offset, 0, 0, key, value)


def build_stretch(entries: Iterable[Entry], max_bytes: int = 1 << 20, start: int = 0) -> KeyWindow:
    made = KeyWindow(A, start, 0, max_bytes)
    for entry in entries:
        made.add(entry)
    return made


def build_table(entries: Iterable[Entry]) -> dict[bytes, bytes | None]:
    """What a client knows that applied these."""
    return {e.key: e.value for e in entries if isinstance(e, Record) and e.key is not None}


def list_keyless_offsets(entries: Iterable[Entry]) -> list[int]:
    return [e.offset for e in entries if isinstance(e, Record) and e.key is None]


def has_even_size(record: Record) -> bool:
    return record.value is None or len(record.value) % 2 == 0


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Entries of one partition that follow each other."""
    made: list[Entry] = []
    at = 0
    for _ in range(draw(st.integers(0, 24))):
        kind = draw(st.sampled_from(["record"] * 6 + ["skip", "gap"]))
        if kind == "record":
            key = draw(st.sampled_from([None, b"a", b"b", b"c"]))
            value = draw(st.sampled_from([None, b"", b"1", b"22"]))
            made.append(record(at, key, value))
        elif kind == "skip":
            made.append(Skip(A, at, at + draw(st.integers(1, 3)), 0))
        else:
            made.append(Gap(A, at, at + draw(st.integers(1, 3)), 0, GapReason.RETENTION))
        at = made[-1].next_offset
    return made


def test_of_each_key_the_latest_goes_out_in_the_order_of_arrival():
    first, second, third = record(0, b"a"), record(1, b"b"), record(2, b"a", b"new")
    assert conflate([first, second, third]) == [second, third]


def test_a_tombstone_is_the_latest_too():
    assert conflate([record(0, b"a"), record(1, b"a", None)]) == [record(1, b"a", None)]


def test_a_key_is_one_of_its_topic_in_whichever_partition():
    moved, other = record(0, b"a", tp=B), record(0, b"a", tp=OTHER)
    assert conflate([record(0, b"a"), other, moved]) == [other, moved]


def test_records_without_a_key_and_what_is_no_record_all_go():
    entries: list[Entry] = [
        record(0, None), Gap(A, 1, 3, 0, GapReason.RETENTION), Ready(B, 0, 0, 0), record(3, None)
    ]  # fmt: skip
    assert conflate(entries) == entries


def test_a_record_that_is_not_seen_replaces_none():
    seen = record(0, b"a", b"22")
    assert conflate([seen, record(1, b"a", b"1")], has_even_size) == [seen]
    made = KeyWindow(A, 0, 0, 1 << 20, has_even_size)
    for entry in (seen, record(1, b"a", b"1")):
        made.add(entry)
    assert list(made.close()) == [seen, Skip(A, 1, 2, 0)]


@given(histories())
def test_whoever_gets_what_is_left_knows_what_all_would_have_told(history: list[Entry]):
    left = conflate(history)
    assert build_table(left) == build_table(history)
    assert list_keyless_offsets(left) == list_keyless_offsets(history)
    assert [e for e in history if e in left] == left


def apply_entries(
    known: dict[bytes, bytes | None], keyless_offsets: list[int], entries: Sequence[Entry]
) -> int | None:
    """Take these in; where they lead to."""
    known.update(build_table(entries))
    keyless_offsets += list_keyless_offsets(entries)
    return entries[-1].next_offset if entries else None


@given(histories(), st.data())
def test_what_is_left_may_be_cut_anywhere_and_gone_on_with(history, data):
    """However often: the place after the last one that was sent leads to all that is newer, and no
    record without a key comes twice."""
    end = history[-1].next_offset if history else 0
    at, known, without = 0, dict[bytes, bytes | None](), list[int]()
    for _ in range(len(history) + 1):
        made = build_stretch((e for e in history if e.offset >= at), start=at)
        assert made.end_offset == end
        left = list(made.close())
        at = (
            apply_entries(
                known, without, left[: data.draw(st.integers(1, len(left)))] if left else []
            )
            or at
        )
    assert (at, known, without) == (end, build_table(history), list_keyless_offsets(history))


@given(histories(), st.integers(1, 3))
def test_a_stretch_holds_so_much_and_what_follows_tells_what_is_not_the_latest(history, records):
    """A table larger than memory, window by window: each key comes once, with its latest."""
    at, got = 0, list[Entry]()
    while at < (history[-1].next_offset if history else 0):
        made = build_stretch(
            (e for e in history if e.offset >= at), RECORD_OVERHEAD_BYTES * records, start=at
        )
        assert made.bytes <= RECORD_OVERHEAD_BYTES * records + buffered_size(record(0, b"a", b"22"))
        left = list(made.close())
        assert left[-1].next_offset == made.end_offset
        at, got = made.end_offset, got + left
    records_got = [e for e in got if isinstance(e, Record)]
    assert records_got == [e for e in conflate(history) if isinstance(e, Record)]


# what the log has of the latest


def build_log(keys: int, rounds: int, value: bytes = b"v") -> PartitionLog:
    """A log in which every key comes once a round."""
    log = PartitionLog(A, 1 << 30, 1e9)
    log.open(0, 0)
    for n in range(keys * rounds):
        log.append(record(n, b"%d" % (n % keys), value), 0.0)
    return log


def build_latest_offsets(
    log: PartitionLog, offset: int = 0, limit: int | None = None
) -> LatestOffsets:
    made = LatestOffsets(RingBudget(limit))
    for _ in range(len(log) // MAX_SCAN_ENTRIES + 1):
        made.scan(log, offset, log.next_offset)
    return made


def test_the_log_tells_which_records_were_replaced():
    log = build_log(1000, 7)
    latest = build_latest_offsets(log)
    left = [entry.offset for entry in log.iter_entries(0) if not latest.has_replaced(entry)]
    assert left == list(range(6000, 7000))


def test_what_was_replaced_by_what_was_cut_off_was_not():
    log = build_log(10, 2)
    latest = build_latest_offsets(log)
    log.append(Gap(A, 20, 12, 1, GapReason.TRUNCATED), 0.0)
    latest.scan(log, 0, log.next_offset)
    assert not latest.has_replaced(record(5, b"5"))


def test_records_that_a_view_does_not_show_replace_none():
    log = PartitionLog(A, 1 << 30, 1e9)
    log.open(0, 0)
    for offset, value in enumerate((b"22", b"1")):
        log.append(record(offset, b"a", value), 0.0)
    latest = LatestOffsets(RingBudget(), has_even_size)
    latest.scan(log, 0, log.next_offset)
    assert not latest.has_replaced(record(0, b"a", b"22"))


def test_what_the_tail_has_not_come_to_replaces_nothing():
    log = build_log(10, 2)
    latest = LatestOffsets(RingBudget())
    latest.scan(log, 0, 15)
    assert latest.has_replaced(record(4, b"4"))
    assert not latest.has_replaced(record(5, b"5"))


def test_without_room_no_more_is_kept_and_what_is_kept_counts():
    log = build_log(20_000, 1)
    room = 3 * MAX_SCAN_ENTRIES * KEY_OVERHEAD_BYTES
    made = build_latest_offsets(log, limit=room)
    assert 0 < made.bytes <= room
    free = build_latest_offsets(log)
    assert free.bytes == 20_000 * KEY_OVERHEAD_BYTES


def test_keys_that_the_log_does_not_hold_any_more_are_let_go_of():
    log = PartitionLog(A, 1000 * estimate_entry_size(record(0, b"123456")), 1e9)
    log.open(0, 0)
    latest = LatestOffsets(RingBudget())
    for n in range(100_000):
        log.append(record(n, b"%06d" % n), 0.0)
        if n % 500 == 0:
            latest.scan(log, 0, log.next_offset)
    assert latest.bytes <= (2 * 1000 + 2 * MAX_SCAN_ENTRIES) * KEY_OVERHEAD_BYTES


@pytest.mark.parametrize("keys, size", [(1, 1000), (100, 1000), (40, 50_000)])
def test_a_slow_client_is_behind_by_the_latest_of_each_key_at_most(keys: int, size: int):
    """With more than 1 MiB of them it was sent every record, and never live again."""
    check_lag(keys, size, 40)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int]:
    """How many keys, and bytes of their values: from one to many, and from 1 KB to 1 MB."""
    keys = int(10 ** draw(st.floats(0, math.log10(2000))))
    return keys, int(10 ** draw(st.floats(3, min(6, math.log10(1e8 / keys)))))


@pytest.mark.night
@settings(max_examples=60)  # of up to a second
@given(tables(), st.integers(2, 60))
def test_so_it_is_with_tables_of_any_size(table: tuple[int, int], turns: int):
    check_lag(*table, turns)


def check_lag(keys: int, size: int, turns: int) -> None:
    topic = KeyedTopic(max_ring_bytes=1, max_log_bytes=1 << 40)
    client = SnapshotClient(topic, slow_policy=SlowClientPolicy.CONFLATE)
    names, value, step = [b"%d" % n for n in range(keys)], b"x" * size, max(2, keys // turns)
    for turn in range(int(CYCLES * keys // step) + 12):
        for n in range(step):
            topic.write_record(0, names[(turn * step + n) % keys], value)
        got = 0  # half of what comes
        while got < step // 2 and (lines := client.take_lines(400) or client.subscription.has_more):
            got += len(lines) if isinstance(lines, list) else 0
        assert client.last_offsets is not None
        assert topic.get_end_offsets()[0] - client.last_offsets[0] <= 2 * keys + 2 * step
    client.take_all_lines()
    assert client.state.table == topic.build_table(topic.get_end_offsets())


# clients of conflated views, and slow ones that are conflated


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.integers(0, 1),
            st.integers(0, 2),
            st.sampled_from([None, b"1", b"2"]),
        ),
        st.tuples(st.sampled_from(["step", "cut", "all"])),
        st.tuples(st.just("take"), st.integers(1, 400)),
    ),
    max_size=60,
)


def run_script(
    topic: KeyedTopic, client: SnapshotClient, script: Sequence[tuple[Any, ...]]
) -> None:
    """Whatever happens, at last it knows what there is; and where its id says that it has all, it
    has."""
    for name, *rest in script:
        if name == "write":
            p, key, value = rest
            topic.write_record(p, KEYS[PARTITIONS[p]][key], value)
        elif name == "step":
            topic.publish_pending()
        elif name == "cut":
            client.reconnect()
        elif name == "take":
            client.take_lines(rest[0])
        else:
            client.take_all_lines()
            now = [place.offset or 0 for place in topic.tail.position.values()]
            assert client.state.table == topic.build_table(now)
    topic.publish_pending()
    client.take_all_lines()
    assert client.state.table == topic.build_table(topic.get_end_offsets())
    assert sorted(client.state.keyless_records) == keyless_of(topic.written_records)


@given(steps, st.sampled_from([1, 700, 1 << 20]), st.sampled_from([1, 500, 1 << 20]))
def test_a_client_of_steps_knows_the_topic_after_any_history(script, ring, cache):
    topic = KeyedTopic(is_stepped=True, max_ring_bytes=ring, max_log_bytes=cache)
    run_script(topic, SnapshotClient(topic), script)


@given(steps, st.sampled_from([1, 700]), st.sampled_from([1, 500, 1 << 20]))
def test_a_slow_client_that_is_conflated_knows_the_topic_after_any_history(script, ring, cache):
    topic = KeyedTopic(max_ring_bytes=ring, max_log_bytes=cache)
    run_script(topic, SnapshotClient(topic, slow_policy=SlowClientPolicy.CONFLATE), script)


def test_a_step_is_one_flush_with_one_id():
    topic = KeyedTopic(is_stepped=True)
    client = SnapshotClient(topic)
    for value in (b"1", b"2", b"3"):
        topic.write_record(0, b"a", value)
        topic.write_record(1, None)
    assert client.take_lines() == []
    topic.publish_pending()
    assert client.take_lines() == [
        "record 1 0", "record 1 1", "record 0 2", "record 1 2 -> 3 3"
    ]  # fmt: skip


def test_what_is_missed_of_steps_is_conflated_too():
    topic = KeyedTopic(is_stepped=True)
    client = SnapshotClient(topic)
    client.reconnect()
    for value in (b"1", b"2", b"3"):
        topic.write_record(0, b"a", value)
        topic.publish_pending()
    topic.write_record(0, b"b", b"not yet")
    client.reconnect()
    assert client.take_all_lines() == ["record 0 2 -> 3 0"]
    topic.publish_pending()
    assert client.take_all_lines() == ["record 0 3 -> 4 0"]


def test_a_slow_client_gets_the_latest_of_what_it_missed_and_rides_again():
    topic = KeyedTopic(max_ring_bytes=1)
    client = SnapshotClient(topic, slow_policy=SlowClientPolicy.CONFLATE)
    for _ in range(50):
        topic.write_record(0, b"a")
        topic.write_record(0, b"b")
    assert client.take_all_lines() == ["record 0 98", "record 0 99 -> 100 0"]
    assert client.subscription.private_reader is None
    topic.write_record(0, b"a")
    assert client.take_lines() == ["record 0 100 -> 101 0"]


def test_a_stretch_longer_than_a_turn_of_the_loop_is_seen_in_several():
    topic = KeyedTopic(max_ring_bytes=1, max_log_bytes=1 << 24)
    client = SnapshotClient(topic, slow_policy=SlowClientPolicy.CONFLATE)
    for _ in range(10_000):
        topic.write_record(0, b"a")
    turns = 0
    while not client.take_lines(64 * 1024):
        turns += 1
        assert client.subscription.has_more
    assert turns > 1
    assert client.received_lines == ["record 0 9999 -> 10000 0"]


def test_what_ends_before_a_record_came_again_does_not_lack_it():
    topic = KeyedTopic(is_stepped=True)
    for value in (b"1", b"2"):
        topic.write_record(0, b"a", value)
        topic.write_record(0, b"b", value)
    topic.publish_pending()
    until = {PARTITIONS[0]: 2, PARTITIONS[1]: 0}
    own = {tp: PartitionPosition(0) for tp in PARTITIONS}
    sub = Subscription(topic.channel, own, SubscriptionTerms(end_offsets=until))
    assert sub.take(1 << 20, 0.0) == b"record 0 0\nrecord 0 1 -> 2 0\n"
    assert sub.end_reason == "until"


def test_one_of_steps_that_has_no_credit_goes_on_where_it_stopped():
    topic = KeyedTopic(is_stepped=True)
    sub = Subscription(topic.channel, terms=SubscriptionTerms(credit=2))
    for key in (b"a", b"b", b"a", b"b", b"c"):
        topic.write_record(0, key)
    topic.publish_pending()
    assert sub.take(1 << 20, 0.0) == b"record 0 2\nrecord 0 3 -> 4 0\n"
    assert sub.take(1 << 20, 0.0) == b""
    sub.limit_credit(2)
    assert sub.take(1 << 20, 0.0) == b"record 0 4 -> 5 0\n"
