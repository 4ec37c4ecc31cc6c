"""The judge finds what is planted: a test of a test, since one that cannot fail proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from support.oracle import StreamOracle
from support.stream_check import AckedRecord, FindingKind

from bench.faults.clients import ClientLog
from bench.faults.judge import Trouble, describe_lack, judge_client, judge_logs
from bench.faults.truth import LogStart, Truth
from bench.faults.views import PRICES, TRIMMED, TYPED, VIEWS, VOLATILE, ClientPlan, Rule, View, Wire
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import TokenWriter, TopicPositions, digest_text, seal_token

LOG = TopicPartition(TRIMMED, 0)
TABLE = TopicPartition(PRICES, 0)
STREAM_VIEW = next(view for view in VIEWS if view.topic == TRIMMED)
OWN_KEY_VIEW = replace(next(view for view in VIEWS if view.path == "/own/key-1"), topic=TRIMMED)
TABLE_VIEW = next(view for view in VIEWS if view.rule is Rule.TABLE)
# Offsets 5 and 6 are of an aborted transaction and its marker.
OFFSETS = [0, 1, 2, 3, 4, 7, 8, 9]
ABORTED = b'{"n":5,"lane":"red"}'


def build_record(tp: TopicPartition, offset: int, key: str = "") -> AckedRecord:
    written = {"n": offset, "lane": "red", "at": 1000 * offset}
    value = json.dumps(written, separators=(",", ":")).encode()
    return AckedRecord(tp, offset, (key or f"key-{offset % 2}").encode(), value)


def build_truth(tp: TopicPartition, log_start: int = 0) -> Truth:
    oracle = StreamOracle()
    records = [build_record(tp, offset) for offset in OFFSETS]
    oracle.add_acked(records)
    oracle.add_aborted([ABORTED])
    return Truth(oracle, {tp.topic: [tp]}, {tp: log_start}, records)


def build_token(tp: TopicPartition, offset: int) -> str:
    positions = TopicPositions(tp.topic, "an id", [offset], [0])
    return seal_token(TokenWriter("a cluster", [positions]).to_text(), digest_text("v")).decode()


class Playback:
    """Gives events to the log of a client, as a gateway would have sent them."""

    def __init__(self, view: View, tp: TopicPartition) -> None:
        self.log = ClientLog(ClientPlan(0, view, Wire.SSE))
        self._tp = tp
        self.connect()

    def connect(self, token: str = "", resume: str = "exact", *, pending: bool = False) -> None:
        self.log.add_connection(token)
        self.add(
            "begin",
            {"resume": resume, "pending": [self.place] if pending else []},
            token or build_token(self._tp, 0),
        )

    def send(self, *offsets: int) -> None:
        for offset in offsets:
            self.send_record(build_record(self._tp, offset))

    def send_record(self, record: AckedRecord, token: str = "", **changes: Any) -> None:
        """Send a record, with some members of its envelope other than they should be."""
        envelope = {
            "topic": record.tp.topic,
            "partition": record.tp.partition,
            "offset": record.offset,
            "timestamp": 1000 * record.offset,
            "key": record.key.decode() if record.key else None,
            "value": record.value.decode() if record.value else None,
            "headers": [["lane", "red"]],
            **changes,
        }
        self.add("message" if record.value else "delete", envelope, token)

    def tell_gap(self, start: int, end: int, reason: str = "retention") -> None:
        self.add("gap", {**self.place, "from": start, "to": end, "reason": reason})

    @property
    def place(self) -> dict[str, Any]:
        return {"topic": self._tp.topic, "partition": self._tp.partition}

    def judge(self, truth: Truth) -> set[str]:
        return {each.kind for each in judge_client(self.log, truth)}

    def add(self, name: str, data: object, token: str = "") -> None:
        self.log.add_event({"event": name, "id": token, "data": json.dumps(data)})


def judge_stream(
    play: Callable[[Playback], None], view: View = STREAM_VIEW, log_start: int = 0
) -> set[str]:
    """Return what is found in what a client of a stream got."""
    client = Playback(view, LOG)
    play(client)
    return client.judge(build_truth(LOG, log_start))


def send_all(client: Playback, offsets: Iterable[int] = OFFSETS) -> None:
    client.send(*offsets)


def test_nothing_is_found_in_a_stream_that_is_right() -> None:
    assert judge_stream(send_all) == set()


def test_nothing_is_found_where_a_gap_covers_what_is_missing() -> None:
    def play(client: Playback) -> None:
        client.send(0)
        client.connect(build_token(LOG, 1))
        client.tell_gap(1, 4)
        client.send(4, 7, 8, 9)

    assert judge_stream(play, log_start=4) == set()


PLANTED: dict[str, tuple[Callable[[Playback], None], FindingKind]] = {
    "a lost record": (lambda client: client.send(0, 1, 3, 4, 7, 8, 9), FindingKind.LOST),
    "a lost end": (lambda client: client.send(0, 1, 2, 3, 4, 7, 8), FindingKind.LOST),
    "nothing at all": (lambda client: client.send(), FindingKind.LOST),
    "a doubled record": (lambda client: client.send(*OFFSETS, 9), FindingKind.DUPLICATE),
    "two in the wrong order": (
        lambda client: client.send(0, 2, 1, 3, 4, 7, 8, 9),
        FindingKind.REORDERED,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_in_a_stream_is_found(name: str) -> None:
    play, kind = PLANTED[name]
    assert kind in judge_stream(play)


def test_a_record_that_comes_again_after_a_reconnect_is_found() -> None:
    def play(client: Playback) -> None:
        client.send(0, 1, 2)
        client.connect(build_token(LOG, 2))
        client.send(2, 3, 4, 7, 8, 9)

    assert judge_stream(play) == {FindingKind.DUPLICATE, Trouble.POSITION_BEHIND}


def test_a_record_of_an_aborted_transaction_is_found() -> None:
    def play(client: Playback) -> None:
        client.send(0, 1, 2, 3, 4)
        client.send_record(AckedRecord(LOG, 5, b"key-1", ABORTED))
        client.send(7, 8, 9)

    assert judge_stream(play) == {FindingKind.ABORTED}


def test_a_record_that_nobody_wrote_is_found() -> None:
    def play(client: Playback) -> None:
        send_all(client)
        client.send_record(build_record(LOG, 12))

    assert judge_stream(play) == {FindingKind.PHANTOM}


def test_a_record_with_another_value_is_found() -> None:
    def play(client: Playback) -> None:
        client.send_record(build_record(LOG, 0)._replace(value=b'{"n":77,"lane":"red"}'))
        client.send(*OFFSETS[1:])

    assert judge_stream(play) == {FindingKind.ALTERED}


def test_a_record_that_is_not_of_the_view_is_found() -> None:
    assert judge_stream(lambda client: client.send(1, 3, 7, 9), OWN_KEY_VIEW) == set()
    assert judge_stream(lambda client: client.send(1, 2, 3, 7, 9), OWN_KEY_VIEW) == {
        FindingKind.OUTSIDE
    }


def test_a_gap_that_is_not_told_is_found() -> None:
    def play(client: Playback) -> None:
        client.send(0)
        client.connect(build_token(LOG, 1))
        client.send(4, 7, 8, 9)

    assert judge_stream(play, log_start=4) == {FindingKind.LOST}


def test_gaps_without_a_loss_are_found() -> None:
    def tell_what_came(client: Playback) -> None:
        client.send(0, 1, 2)
        client.tell_gap(1, 3)
        client.send(3, 4, 7, 8, 9)

    def tell_nothing(client: Playback) -> None:
        send_all(client)
        client.tell_gap(10, 12)

    def tell_twice(client: Playback) -> None:
        client.tell_gap(0, 4)
        client.tell_gap(0, 4)
        client.send(4, 7, 8, 9)

    def tell_too_much(client: Playback) -> None:
        client.send(0)
        client.tell_gap(1, 7)
        client.send(7, 8, 9)

    assert FindingKind.ARRIVED in judge_stream(tell_what_came)
    assert FindingKind.EMPTY in judge_stream(tell_nothing)
    assert FindingKind.REPEATED in judge_stream(tell_twice)
    assert FindingKind.BOUNDS in judge_stream(tell_too_much, log_start=4)


def test_a_stream_that_says_it_does_not_resume_exactly_is_found() -> None:
    def play(client: Playback) -> None:
        client.connect(resume="batch")
        send_all(client)

    assert judge_stream(play) == {Trouble.RESUME_MODE}


def test_a_log_that_went_back_without_a_word_is_found() -> None:
    """A gap of reason recreated tells it; without one, the new log is not what was due."""
    tp = TopicPartition(VOLATILE, 0)
    view = next(view for view in VIEWS if view.topic == VOLATILE)
    for is_told in (True, False):
        truth = build_truth(tp)
        client = Playback(view, tp)
        send_all(client)
        truth.oracle.mark_recreated(VOLATILE)
        truth.oracle.add_acked([build_record(tp, 0, "key-9")])
        if is_told:
            client.tell_gap(10, 0, "recreated")
        client.send_record(build_record(tp, 0, "key-9"))
        assert bool(client.judge(truth)) is not is_told


def test_a_gap_over_what_was_deleted_only_later_is_found() -> None:
    """The log start at the end proves nothing of a gap that was told before."""
    client = Playback(STREAM_VIEW, LOG)
    client.send(0)
    client.tell_gap(1, 4)
    client.send(4, 7, 8, 9)
    gap_at = client.log.times[1]
    for log_start, kinds in ((4, set()), (3, {FindingKind.BOUNDS})):
        truth = build_truth(LOG, log_start=8)
        truth.earlier_log_starts = [
            LogStart(gap_at - 1, LOG, 1),
            LogStart(gap_at + 1, LOG, log_start),
            LogStart(gap_at + 2, LOG, 8),
        ]
        assert client.judge(truth) == kinds


def test_a_gap_for_another_reason_than_the_fault_is_found() -> None:
    """Records that are intact in Kafka were told as corrupt, in any topic, and that passed."""

    def play(client: Playback) -> None:
        client.send(0)
        client.tell_gap(1, 2, "corrupt")
        client.send(2, 3, 4, 7, 8, 9)

    assert judge_stream(play) == {Trouble.GAP_REASON}


@pytest.mark.parametrize(
    "changes",
    [{"key": None}, {"timestamp": 1}, {"headers": []}, {"headers": [["lane", "blue"]]}],
    ids=str,
)
def test_a_record_with_parts_of_another_one_is_found(changes: dict[str, Any]) -> None:
    def play(client: Playback) -> None:
        client.send_record(build_record(LOG, 0), **changes)
        client.send(*OFFSETS[1:])

    assert judge_stream(play) == {Trouble.PROTOCOL}


def test_events_that_should_not_be_are_found() -> None:
    def begin_without_a_word(client: Playback) -> None:
        client.send(0, 1, 2)
        client.log.add_connection("")
        client.send(3, 4, 7, 8, 9)

    def tell_an_error(client: Playback) -> None:
        client.add("error", {**client.place, "code": "access-denied", "message": ""})
        send_all(client)

    def send_of_another_topic(client: Playback) -> None:
        send_all(client)
        client.send_record(build_record(TopicPartition(TYPED, 0), 0))

    for play in (begin_without_a_word, tell_an_error):
        assert judge_stream(play) == {Trouble.PROTOCOL}
    assert FindingKind.OUTSIDE in judge_stream(send_of_another_topic)


def test_a_partition_that_stays_pending_is_found() -> None:
    def play(client: Playback) -> None:
        send_all(client)
        client.connect(build_token(LOG, 10), pending=True)

    assert judge_stream(play) == {Trouble.STILL_PENDING}


def test_what_is_in_memory_may_come_before_its_partition_is_ready() -> None:
    def play(client: Playback) -> None:
        client.connect(pending=True)
        client.send(0)
        client.add("ready", client.place)
        client.send(*OFFSETS[1:])

    assert judge_stream(play) == set()


def play_positions(view: View, tp: TopicPartition, offsets: dict[int, int]) -> set[str]:
    """Return what is found where the position after each offset is as given."""
    client = Playback(view, tp)
    for offset, position in offsets.items():
        client.send_record(build_record(tp, offset), build_token(tp, position))
    return client.judge(build_truth(tp))


def test_a_position_that_no_client_came_back_with_is_judged_too() -> None:
    """A client that is cut off there would lose a record; the next position is right again."""
    right = {offset: offset + 1 for offset in OFFSETS}
    assert play_positions(STREAM_VIEW, LOG, right) == set()
    # What lies between is of an aborted transaction.
    assert play_positions(STREAM_VIEW, LOG, right | {4: 7}) == set()
    assert play_positions(STREAM_VIEW, LOG, right | {0: 2}) == {Trouble.POSITION_AHEAD}
    assert play_positions(STREAM_VIEW, LOG, right | {4: 3}) == {Trouble.POSITION_BEHIND}


def test_a_position_of_a_table_has_the_latest_of_each_key() -> None:
    assert play_positions(TABLE_VIEW, TABLE, {0: 0, 3: 0, 4: 5, 7: 5, 8: 10, 9: 10}) == set()
    # Record 4 may be left out for 8 of the same key, which comes later; 9 is left out for none.
    assert play_positions(TABLE_VIEW, TABLE, {3: 5, 8: 9, 9: 10}) == set()
    assert play_positions(TABLE_VIEW, TABLE, {3: 4, 8: 10, 9: 11}) == {Trouble.POSITION_AHEAD}


def test_an_error_that_no_gateway_expected_is_found() -> None:
    """The reactive group failed and was run again; that showed in the log alone."""
    lines = [
        "gateway 1: 2026-11-28 03:52:17,900 INFO FETCH resumed",
        "gateway 1: 2026-11-28 03:52:17,954 ERROR group bench failed; it is run again",
        "gateway 1:     + Exception Group Traceback (most recent call last):",
        "gateway 1:       | Traceback (most recent call last):",
        "gateway 1: 2026-11-28 03:52:18,000 INFO FETCH resumed",
        "job: Traceback (most recent call last):",
    ]
    (finding,) = judge_logs(lines)
    assert finding.kind is Trouble.UNEXPECTED_ERROR and finding.text == lines[1]
    assert judge_logs([*lines[:2], *lines[-2:]]) == []
    unclosed = "gateway 1: 2026-11-28 03:52:18,001 ERROR worker 2 asyncio: Unclosed connection"
    (finding,) = judge_logs([*lines[:2], unclosed])
    assert finding.text == unclosed


def test_errors_of_a_guard_are_told_to_guarded_clients_alone() -> None:
    def tell_error(client: Playback) -> None:
        client.add("error", {"code": "guard-unavailable", "message": ""})
        send_all(client)

    guarded = Playback(replace(STREAM_VIEW, user="ada"), LOG)
    tell_error(guarded)
    assert guarded.judge(build_truth(LOG)) == set()
    assert judge_stream(tell_error) == {Trouble.PROTOCOL}


def test_a_partition_to_which_nothing_was_written_is_told() -> None:
    truth = Truth(StreamOracle(), {TRIMMED: [LOG]})
    assert truth.list_unwritten() == [LOG]
    assert build_truth(LOG).list_unwritten() == []


def judge_table(play: Callable[[Playback], None]) -> set[str]:
    """Return what is found in what a client of a table got; its keys are key-0 and key-1."""
    client = Playback(TABLE_VIEW, TABLE)
    play(client)
    return client.judge(build_truth(TABLE))


def test_a_table_needs_the_latest_of_each_key_alone() -> None:
    assert judge_table(lambda client: client.send(8, 9)) == set()
    assert judge_table(lambda client: client.send(8, 7)) == {FindingKind.LOST}


def test_a_table_may_get_a_flush_again_but_not_what_is_before_its_position() -> None:
    def play_flush(client: Playback) -> None:
        client.send(2, 3, 4)
        client.connect(build_token(TABLE, 3))
        client.send(3, 4, 8, 9)

    def play_older(client: Playback) -> None:
        client.send(2, 3, 4)
        client.connect(build_token(TABLE, 4))
        client.send(3, 8, 9)

    assert judge_table(play_flush) == set()
    assert judge_table(play_older) == {FindingKind.DUPLICATE}


def test_what_is_planted_in_a_table_is_found() -> None:
    def send_aborted(client: Playback) -> None:
        client.send_record(AckedRecord(TABLE, 5, b"key-1", ABORTED))
        client.send(8, 9)

    def send_phantom(client: Playback) -> None:
        client.send(8, 9)
        client.send_record(build_record(TABLE, 11, "key-3"))

    def tell_gap(client: Playback) -> None:
        client.tell_gap(0, 4)
        client.send(8, 9)

    assert judge_table(lambda client: client.send(8, 4, 9, 8)) == {
        FindingKind.REORDERED,
        FindingKind.DUPLICATE,
    }
    assert FindingKind.ABORTED in judge_table(send_aborted)
    assert FindingKind.PHANTOM in judge_table(send_phantom)
    assert FindingKind.EMPTY in judge_table(tell_gap)


def test_the_first_of_two_copies_may_be_compacted_before_the_log_is_read() -> None:
    truth = build_truth(TABLE)
    copied = AckedRecord(TABLE, 12, b"key-0", b'{"n": 12}')
    truth.oracle.add_acked([copied])
    first, elsewhere, later = (Playback(TABLE_VIEW, TABLE) for _ in range(3))
    for client, record in (
        (first, copied._replace(offset=11)),
        (elsewhere, copied._replace(offset=11, key=b"key-1")),
        (later, copied._replace(offset=13)),
    ):
        client.send(8, 9)
        client.send_record(record)
    first.send_record(copied)
    assert first.judge(truth) == set()
    assert FindingKind.PHANTOM in elsewhere.judge(truth)
    assert FindingKind.PHANTOM in later.judge(truth)


def test_a_tombstone_that_is_no_delete_is_found() -> None:
    """A page that listens for `delete` would keep the key."""
    truth = build_truth(TABLE)
    truth.oracle.add_acked([AckedRecord(TABLE, 10, b"key-1", None)])
    for name, kinds in (("delete", set()), ("message", {Trouble.PROTOCOL})):
        client = Playback(TABLE_VIEW, TABLE)
        client.send(8, 9)
        client.add(name, {**client.place, "offset": 10, "key": "key-1", "value": None})
        assert client.judge(truth) == kinds


def test_a_deleted_key_must_not_stay_in_a_table() -> None:
    truth = build_truth(TABLE)
    truth.oracle.add_acked([AckedRecord(TABLE, 10, b"key-1", None)])
    stale, right, fresh = (Playback(TABLE_VIEW, TABLE) for _ in range(3))
    stale.send(8, 9)
    right.send(8, 9)
    right.send_record(AckedRecord(TABLE, 10, b"key-1", None))
    fresh.send(8)  # a snapshot that began after that never names the key
    assert stale.judge(truth) == {FindingKind.LOST}
    assert right.judge(truth) == fresh.judge(truth) == set()


def test_a_client_lacks_something_until_it_has_the_last_record_or_a_gap_over_it() -> None:
    truth = build_truth(LOG)
    client = Playback(STREAM_VIEW, LOG)
    assert "up to offset 9" in describe_lack(client.log, truth)
    client.send(0, 1)
    assert describe_lack(client.log, truth)
    client.tell_gap(2, 10)
    assert not describe_lack(client.log, truth)
    other = Playback(STREAM_VIEW, LOG)
    other.send(9)
    assert not describe_lack(other.log, truth)
