"""What is left of records where only the latest of each key counts.

GATEWAY_CONFLATION_KEYS: of how many keys a slow client's table is at most (2,000);
GATEWAY_CONFLATION_CYCLES: how often all of them are written (12).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.keyed import KEYS, PARTITIONS, Client, Topic
from support.keyed import keyless as keyless_of

from gateway.core.channel.conflation import (
    COST,
    KEY_COST,
    LOOK_ENTRIES,
    LatestOffsets,
    Stretch,
    latest,
    weight,
)
from gateway.core.channel.rings import Rings
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.log.partition_log import Log, size_of
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Gap, Ready, Reason, Record, Skip, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OTHER = TopicPartition("stock", 0)
MOST_KEYS = int(os.environ.get("GATEWAY_CONFLATION_KEYS", "2000"))
CYCLES = float(os.environ.get("GATEWAY_CONFLATION_CYCLES", "12"))


def record(offset: int, key: bytes | None, value: bytes | None = b"v", tp: TopicPartition = A):
    return Record(tp, offset, 0, 0, key, value)


def stretch(entries: Iterable[Entry], most: int = 1 << 20, start: int = 0) -> Stretch:
    made = Stretch(A, start, 0, most)
    for entry in entries:
        made.add(entry)
    return made


def table(entries: Iterable[Entry]) -> dict[bytes, bytes | None]:
    """What a client knows that applied these."""
    return {e.key: e.value for e in entries if isinstance(e, Record) and e.key is not None}


def keyless(entries: Iterable[Entry]) -> list[int]:
    return [e.offset for e in entries if isinstance(e, Record) and e.key is None]


def even(record: Record) -> bool:
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
            made.append(Gap(A, at, at + draw(st.integers(1, 3)), 0, Reason.RETENTION))
        at = made[-1].next
    return made


def test_of_each_key_the_latest_goes_out_in_the_order_of_arrival():
    first, second, third = record(0, b"a"), record(1, b"b"), record(2, b"a", b"new")
    assert latest([first, second, third]) == [second, third]


def test_a_tombstone_is_the_latest_too():
    assert latest([record(0, b"a"), record(1, b"a", None)]) == [record(1, b"a", None)]


def test_a_key_is_one_of_its_topic_in_whichever_partition():
    moved, other = record(0, b"a", tp=B), record(0, b"a", tp=OTHER)
    assert latest([record(0, b"a"), other, moved]) == [other, moved]


def test_records_without_a_key_and_what_is_no_record_all_go():
    entries: list[Entry] = [
        record(0, None), Gap(A, 1, 3, 0, Reason.RETENTION), Ready(B, 0, 0, 0), record(3, None)
    ]  # fmt: skip
    assert latest(entries) == entries


def test_a_record_that_is_not_seen_replaces_none():
    seen = record(0, b"a", b"22")
    assert latest([seen, record(1, b"a", b"1")], even) == [seen]
    made = Stretch(A, 0, 0, 1 << 20, even)
    for entry in (seen, record(1, b"a", b"1")):
        made.add(entry)
    assert list(made.close()) == [seen, Skip(A, 1, 2, 0)]


@given(histories())
def test_whoever_gets_what_is_left_knows_what_all_would_have_told(history: list[Entry]):
    left = latest(history)
    assert table(left) == table(history)
    assert keyless(left) == keyless(history)
    assert [e for e in history if e in left] == left


def apply(
    known: dict[bytes, bytes | None], without: list[int], entries: Sequence[Entry]
) -> int | None:
    """Take these in; where they lead to."""
    known.update(table(entries))
    without += keyless(entries)
    return entries[-1].next if entries else None


@given(histories(), st.data())
def test_what_is_left_may_be_cut_anywhere_and_gone_on_with(
    history: list[Entry], data: st.DataObject
):
    """However often: the place after the last one that was sent leads to all that is newer, and no
    record without a key comes twice."""
    end = history[-1].next if history else 0
    at, known, without = 0, dict[bytes, bytes | None](), list[int]()
    for _ in range(len(history) + 1):
        made = stretch((e for e in history if e.offset >= at), start=at)
        assert made.end == end
        left = list(made.close())
        at = (
            apply(known, without, left[: data.draw(st.integers(1, len(left)))] if left else [])
            or at
        )
    assert (at, known, without) == (end, table(history), keyless(history))


@given(histories(), st.integers(1, 3))
def test_a_stretch_holds_so_much_and_what_follows_tells_what_is_not_the_latest(
    history: list[Entry], records: int
):
    """A table larger than memory, window by window: each key comes once, with its latest."""
    at, got = 0, list[Entry]()
    while at < (history[-1].next if history else 0):
        made = stretch((e for e in history if e.offset >= at), COST * records, start=at)
        assert made.bytes <= COST * records + weight(record(0, b"a", b"22"))
        left = list(made.close())
        assert left[-1].next == made.end
        at, got = made.end, got + left
    records_got = [e for e in got if isinstance(e, Record)]
    assert records_got == [e for e in latest(history) if isinstance(e, Record)]


# what the log has of the latest


def filled(keys: int, rounds: int, value: bytes = b"v") -> Log:
    """A log in which every key comes once a round."""
    log = Log(A, 1 << 30, 1e9)
    log.open(0, 0)
    for n in range(keys * rounds):
        log.append(record(n, b"%d" % (n % keys), value), 0.0)
    return log


def looked(log: Log, offset: int = 0, limit: int | None = None) -> LatestOffsets:
    made = LatestOffsets(Rings(limit))
    for _ in range(len(log) // LOOK_ENTRIES + 1):
        made.look(log, offset, log.next)
    return made


def test_the_log_tells_which_records_were_replaced():
    log = filled(1000, 7)
    latest = looked(log)
    left = [entry.offset for entry in log.read(0) if not latest.has_replaced(entry)]
    assert left == list(range(6000, 7000))


def test_what_was_replaced_by_what_was_cut_off_was_not():
    log = filled(10, 2)
    latest = looked(log)
    log.append(Gap(A, 20, 12, 1, Reason.TRUNCATED), 0.0)
    latest.look(log, 0, log.next)
    assert not latest.has_replaced(record(5, b"5"))


def test_records_that_a_view_does_not_show_replace_none():
    log = Log(A, 1 << 30, 1e9)
    log.open(0, 0)
    for offset, value in enumerate((b"22", b"1")):
        log.append(record(offset, b"a", value), 0.0)
    latest = LatestOffsets(Rings(), even)
    latest.look(log, 0, log.next)
    assert not latest.has_replaced(record(0, b"a", b"22"))


def test_what_the_tail_has_not_come_to_replaces_nothing():
    log = filled(10, 2)
    latest = LatestOffsets(Rings())
    latest.look(log, 0, 15)
    assert latest.has_replaced(record(4, b"4"))
    assert not latest.has_replaced(record(5, b"5"))


def test_without_room_no_more_is_kept_and_what_is_kept_counts():
    log = filled(20_000, 1)
    room = 3 * LOOK_ENTRIES * KEY_COST
    made = looked(log, limit=room)
    assert 0 < made.bytes <= room
    free = looked(log)
    assert free.bytes == 20_000 * KEY_COST


def test_keys_that_the_log_does_not_hold_any_more_are_let_go_of():
    log = Log(A, 1000 * size_of(record(0, b"123456")), 1e9)
    log.open(0, 0)
    latest = LatestOffsets(Rings())
    for n in range(100_000):
        log.append(record(n, b"%06d" % n), 0.0)
        if n % 500 == 0:
            latest.look(log, 0, log.next)
    assert latest.bytes <= (2 * 1000 + 2 * LOOK_ENTRIES) * KEY_COST


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int]:
    """How many keys, and bytes of their values: from one to many, and from 1 KB to 1 MB."""
    keys = int(10 ** draw(st.floats(0, math.log10(MOST_KEYS))))
    return keys, int(10 ** draw(st.floats(3, min(6, math.log10(1e8 / keys)))))


@settings(max_examples=6, deadline=None)
@given(tables(), st.integers(2, 60))
@example((1, 1000), 40)
@example((1_500, 1000), 40)
@example((40, 1_000_000), 40)
def test_a_slow_client_is_behind_by_the_latest_of_each_key_at_most(
    table: tuple[int, int], turns: int
):
    """With more than 1 MiB of them it was sent every record, and never live again."""
    keys, size = table
    topic = Topic(ring=1, cache=1 << 40)
    client = Client(topic, slow=SlowClient.CONFLATE)
    names, value, step = [b"%d" % n for n in range(keys)], b"x" * size, max(2, keys // turns)
    for turn in range(int(CYCLES * keys // step) + 12):
        for n in range(step):
            topic.write(0, names[(turn * step + n) % keys], value)
        got = 0  # half of what comes
        while got < step // 2 and (lines := client.take(400) or client.subscription.more):
            got += len(lines) if isinstance(lines, list) else 0
        assert client.id is not None
        assert topic.ends()[0] - client.id[0] <= 2 * keys + 2 * step
    client.take_all()
    assert client.known.table == topic.known(topic.ends())


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


def run(topic: Topic, client: Client, script: Sequence[tuple[Any, ...]]) -> None:
    """Whatever happens, at last it knows what there is; and where its id says that it has all, it
    has."""
    for name, *rest in script:
        if name == "write":
            p, key, value = rest
            topic.write(p, KEYS[PARTITIONS[p]][key], value)
        elif name == "step":
            topic.step()
        elif name == "cut":
            client.cut()
        elif name == "take":
            client.take(rest[0])
        else:
            client.take_all()
            now = [place.offset or 0 for place in topic.tail.position.values()]
            assert client.known.table == topic.known(now)
    topic.step()
    client.take_all()
    assert client.known.table == topic.known(topic.ends())
    assert sorted(client.known.keyless) == keyless_of(topic.written)


@given(steps, st.sampled_from([1, 700, 1 << 20]), st.sampled_from([1, 500, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_a_client_of_steps_knows_the_topic_after_any_history(
    script: Sequence[tuple[Any, ...]], ring: int, cache: int
):
    topic = Topic(steps=True, ring=ring, cache=cache)
    run(topic, Client(topic), script)


@given(steps, st.sampled_from([1, 700]), st.sampled_from([1, 500, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_a_slow_client_that_is_conflated_knows_the_topic_after_any_history(
    script: Sequence[tuple[Any, ...]], ring: int, cache: int
):
    topic = Topic(ring=ring, cache=cache)
    run(topic, Client(topic, slow=SlowClient.CONFLATE), script)


def test_a_step_is_one_flush_with_one_id():
    topic = Topic(steps=True)
    client = Client(topic)
    for value in (b"1", b"2", b"3"):
        topic.write(0, b"a", value)
        topic.write(1, None)
    assert client.take() == []
    topic.step()
    assert client.take() == [
        "record 1 0", "record 1 1", "record 0 2", "record 1 2 -> 3 3"
    ]  # fmt: skip


def test_what_is_missed_of_steps_is_conflated_too():
    topic = Topic(steps=True)
    client = Client(topic)
    client.cut()
    for value in (b"1", b"2", b"3"):
        topic.write(0, b"a", value)
        topic.step()
    topic.write(0, b"b", b"not yet")
    client.cut()
    assert client.take_all() == ["record 0 2 -> 3 0"]
    topic.step()
    assert client.take_all() == ["record 0 3 -> 4 0"]


def test_a_slow_client_gets_the_latest_of_what_it_missed_and_rides_again():
    topic = Topic(ring=1)
    client = Client(topic, slow=SlowClient.CONFLATE)
    for _ in range(50):
        topic.write(0, b"a")
        topic.write(0, b"b")
    assert client.take_all() == ["record 0 98", "record 0 99 -> 100 0"]
    assert client.subscription.alone is None
    topic.write(0, b"a")
    assert client.take() == ["record 0 100 -> 101 0"]


def test_a_stretch_longer_than_a_turn_of_the_loop_is_seen_in_several():
    topic = Topic(ring=1, cache=1 << 24)
    client = Client(topic, slow=SlowClient.CONFLATE)
    for _ in range(10_000):
        topic.write(0, b"a")
    turns = 0
    while not client.take(64 * 1024):
        turns += 1
        assert client.subscription.more
    assert turns > 1
    assert client.lines == ["record 0 9999 -> 10000 0"]


def test_what_ends_before_a_record_came_again_does_not_lack_it():
    topic = Topic(steps=True)
    for value in (b"1", b"2"):
        topic.write(0, b"a", value)
        topic.write(0, b"b", value)
    topic.step()
    until = {PARTITIONS[0]: 2, PARTITIONS[1]: 0}
    own = {tp: Place(0) for tp in PARTITIONS}
    sub = Subscription(topic.channel, own, until=until)
    assert sub.take(1 << 20) == b"record 0 0\nrecord 0 1 -> 2 0\n"
    assert sub.ended == "until"


def test_one_of_steps_that_has_no_credit_goes_on_where_it_stopped():
    topic = Topic(steps=True)
    sub = Subscription(topic.channel, credit=2)
    for key in (b"a", b"b", b"a", b"b", b"c"):
        topic.write(0, key)
    topic.step()
    assert sub.take(1 << 20) == b"record 0 2\nrecord 0 3 -> 4 0\n"
    assert sub.take(1 << 20) == b""
    sub.credit = 2
    assert sub.take(1 << 20) == b"record 0 4 -> 5 0\n"
