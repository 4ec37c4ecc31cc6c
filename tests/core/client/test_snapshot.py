from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.keyed import KEYS, PARTITIONS, Client, Topic
from support.keyed import keyless as keyless_of

from gateway.core.client.snapshot import Snapshot
from gateway.core.log.position import UNVERIFIED, Place
from gateway.core.log.record import SnapshotEnd

A, B = PARTITIONS


def snapshot(*fresh: Any) -> Snapshot:
    return Snapshot(["prices"], PARTITIONS, fresh)


def test_it_is_closed_once_when_every_partition_is_at_its_end():
    made = snapshot(A, B)
    made.ends.update({A: 3, B: 0})
    made.moved(A, Place(2))
    made.moved(B, Place(0))
    assert made.end() is None
    made.moved(A, Place(3))
    made.records = 7
    assert made.end() == SnapshotEnd(("prices",), 7)
    assert made.end() is None


def test_a_partition_at_its_end_waits_for_the_others():
    made = snapshot(A, B)
    made.ends.update({A: 0, B: 9})
    made.moved(A, Place(0))
    assert (made.holds(A), made.holds(B)) == (True, False)


def test_what_cannot_be_read_is_told_as_pending_and_comes_later():
    made = snapshot(A, B)
    made.ends[A] = 0
    made.moved(A, Place(0))
    made.overdue = True
    assert made.end() == SnapshotEnd(("prices",), 0, (B,))
    assert not made.holds(A), "it is live"
    assert made.is_fresh(B) and made.seeks(B)


def test_a_place_that_was_not_held_against_the_log_is_at_no_end():
    made = snapshot()
    made.ends[A] = 3
    made.moved(A, Place(9, 0, UNVERIFIED))
    assert A in made.left


def test_a_snapshot_is_the_latest_of_each_key_without_tombstones_in_the_order_of_offsets():
    topic = Topic()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"gone", b"1"), (b"gone", None)):
        topic.write(0, key, value)
    client = Client(topic, snapshot=True)
    assert client.take_all() == ["record 0 1", "record 0 2", "snapshot-end 2 -> 5 0"]
    topic.write(0, b"a", None)
    assert client.take_all() == ["record 0 5 -> 6 0"]
    assert client.subscription.alone is None


def test_what_comes_meanwhile_comes_after_its_end():
    topic = Topic()
    for _ in range(8):
        topic.write(0, None)
    client = Client(topic, snapshot=True)
    first = client.take(1)
    topic.write(0, b"a")
    topic.write(1, b"c")
    rest = client.take_all()
    assert first[0] == "record 0 0 -> 1 0"
    assert rest.index("snapshot-end 8 -> 8 0") < rest.index("record 1 0 -> 8 1")


def test_a_partition_that_is_through_does_not_go_live_before_the_others():
    topic = Topic()
    topic.write(0, b"a")
    for _ in range(8):
        topic.write(1, None)
    client = Client(topic, snapshot=True)
    while not client.known.table:
        client.take(1)
    topic.write(0, b"b")
    rest = client.take_all()
    end = next(n for n, line in enumerate(rest) if line.startswith("snapshot-end 9"))
    assert rest.index("record 0 1 -> 2 8") > end


def test_one_that_is_cut_within_it_goes_on_from_there_and_hears_what_was_deleted():
    topic = Topic()
    for key in (b"a", b"b", b"x", b"y"):
        topic.write(0, key)
    client = Client(topic, snapshot=True)
    client.take(1)
    assert client.known.table == {b"a": b"v"}
    topic.write(0, b"a", None)
    client.cut()
    taken = client.take_all()
    assert taken == [
        "record 0 1", "record 0 2", "record 0 3", "record 0 4", "snapshot-end 4 -> 5 0"
    ]  # fmt: skip
    assert client.known.table == topic.known([5, 0])


def test_an_empty_topic_has_an_empty_snapshot():
    assert Client(Topic(), snapshot=True).take_all() == ["snapshot-end 0 -> 0 0"]


scripts = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.integers(0, 1),
            st.integers(0, 2),
            st.sampled_from([None, b"1", b"2"]),
        ),
        st.tuples(st.sampled_from(["step", "cut"])),
        st.tuples(st.just("take"), st.integers(1, 400)),
    ),
    max_size=50,
)


@given(
    scripts,
    scripts,
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 1 << 20]),
    st.sampled_from([1, 900]),
)
@settings(max_examples=300, deadline=None)
def test_whoever_begins_with_a_snapshot_knows_the_topic_after_any_history(
    before: Sequence[tuple[Any, ...]],
    after: Sequence[tuple[Any, ...]],
    steps: bool,
    blocks: bool,
    ring: int,
    cache: int,
):
    """At the end of a first snapshot that was not cut it knows the topic as of its id."""
    topic = Topic(steps=steps, ring=ring, cache=cache)
    client: Client | None = None
    for name, *rest in (*before, ("begin",), *after, ("step",)):
        if name == "write":
            p, key, value = rest
            topic.write(p, KEYS[PARTITIONS[p]][key], value)
        elif name == "step":
            topic.step()
        elif name == "begin":
            client = Client(topic, snapshot=True, blocks=blocks)
        elif client is not None and name == "cut":
            client.cut()
        elif client is not None:
            client.take(rest[0])
    assert client is not None
    client.take_all()
    assert client.known.ended
    assert client.known.table == topic.known(topic.ends())
    assert sorted(client.known.keyless) == keyless_of(topic.written)


@given(scripts, scripts)
@settings(deadline=None)
def test_at_its_end_a_client_knows_the_topic_as_of_its_id(
    before: Sequence[tuple[Any, ...]], meanwhile: Sequence[tuple[Any, ...]]
):
    topic = Topic()
    for name, *rest in before:
        if name == "write":
            topic.write(rest[0], KEYS[PARTITIONS[rest[0]]][rest[1]], rest[2])
    client = Client(topic, snapshot=True)
    for name, *rest in (*meanwhile, *[("take", 1)] * 200):
        if name == "write":
            topic.write(rest[0], KEYS[PARTITIONS[rest[0]]][rest[1]], rest[2])
        elif name == "take":
            lines = client.take(1)
            if client.known.ended:
                assert lines[-1].startswith("snapshot-end")
                assert client.id is not None
                assert client.known.table == topic.known(client.id)
                return
    raise AssertionError("no end of the snapshot")
