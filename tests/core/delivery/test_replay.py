"""What a replay is, and who works on it."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.replay import (
    Destination,
    MissingRange,
    Replay,
    Replays,
    ReplayState,
    Span,
)
from gateway.core.log.record import TopicPartition


def build_replay(id: str = "r", **spans: int) -> Replay:
    """spans: `p0=10` is partition 0 from 0 to before 10."""
    made = {int(name[1:]): Span(0, end, 0) for name, end in spans.items()}
    return Replay(id, "orders", Destination.TOPIC, "copy", "", made, created=1000, updated=1000)


def test_is_over_when_all_partitions_are_and_an_empty_one_is_from_the_start():
    some = build_replay(p0=10, p1=0)
    assert not some.is_done
    assert [tp for tp, _ in some.list_remaining()] == [TopicPartition("orders", 0)]

    some = some.with_progress(0, 4, records=3, bytes=30, at=2000)
    assert some.progress == 0.4
    some = some.with_progress(0, 10, records=5, bytes=50, at=3000)

    assert some.is_done
    assert (some.records, some.bytes, some.progress) == (8, 80, 1.0)


def test_what_is_gone_is_told_and_passed_over_but_no_further_than_the_end():
    some = build_replay(p0=10).with_missing(0, 7, at=2000)
    assert (some.lacks, some.spans[0].next_offset) == ((MissingRange(0, 0, 7),), 7)

    some = some.with_missing(0, 90, at=2000)

    assert some.lacks[1] == MissingRange(0, 7, 10)
    assert some.is_done


def test_records_that_the_target_refuses_are_ranges_of_their_own():
    some = build_replay(p0=30).with_missing(0, 4, at=2000).with_refused(0, [4, 5])
    some = some.with_refused(0, [6, 9])
    assert [each[1:] for each in some.lacks] == [
        (0, 4, "retention"), (4, 7, "too-large"), (9, 10, "too-large"),
    ]  # fmt: skip


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(*[st.integers(0, 99)] * 3), max_size=4),
    st.sampled_from(ReplayState),
    st.text(max_size=20),
)
def test_comes_out_of_its_topic_as_it_was(spans, state, error):
    some = Replay(
        "r", "orders", Destination.BACKEND, "", "billing",
        {number: Span(*span) for number, span in spans.items()},
        1, 2, by="me", owner="here", state=state, records=3, lacks=(MissingRange(0, 1, 2),),
        error=error,
    )  # fmt: skip
    assert Replay.from_json(orjson.loads(orjson.dumps(some.to_json()))) == some


def test_one_whose_owner_is_silent_is_taken_over_and_one_that_was_given_up_at_once():
    replays = Replays(silence_timeout_s=5.0, random=lambda: 0.0)
    replays.apply_record("a", build_replay("a", p0=1).with_owner("here", 1), now=0.0)
    replays.apply_record("b", build_replay("b", p0=1), now=0.0)
    replays.apply_record("c", build_replay("c", p0=1).with_end(ReplayState.DONE, 1), now=0.0)

    assert replays.list_abandoned(now=4.9) == ["b"]
    replays.apply_record("a", build_replay("a", p0=1).with_owner("here", 2), now=4.9)
    assert replays.list_abandoned(now=9.8) == ["b"]
    assert replays.list_abandoned(now=10.0) == ["a", "b"]


def test_those_that_ended_first_are_forgotten():
    """None ever was: each took 9 KB of every sidecar, and all came with each list."""
    replays = Replays(max_replays=2)
    running = build_replay("a", p0=1)
    replays.apply_record("a", running, now=0.0)
    for id in ("b", "c"):
        replays.apply_record(id, build_replay(id, p0=1), now=0.0)
    for id in ("c", "b"):
        replays.apply_record(id, build_replay(id, p0=1).with_end(ReplayState.DONE, 1), now=1.0)
    assert [replay.id for replay in replays] == ["a", "b"]
    assert replays.get_rate("c", now=2.0) == 0.0


def test_the_rate_is_that_of_late_while_it_runs_and_of_all_its_time_after():
    replays = Replays()
    some = build_replay(p0=1000)
    for second in range(30):
        some = some.with_progress(0, second, records=second, bytes=0, at=1000 + second * 1000)
        replays.apply_record("r", some, now=float(second))
    assert 22 < replays.get_rate("r", now=29.0) < 26

    replays.apply_record("r", some.with_end(ReplayState.DONE, 31_000), now=30.0)

    assert replays.get_rate("r", now=99.0) == some.records / 30
