"""Bugs that were planted: a model that does not find them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from model.oracle import Wrong
from model.running import run
from support.rendering import Rendering

from gateway.core.channel.byte_counts import Ledger
from gateway.core.channel.channel import Event
from gateway.core.client.catch_up import CatchUp
from gateway.core.client.read_buffer import Backlog
from gateway.core.client.subscription import Subscription
from gateway.core.log import partition_reader as reading
from gateway.core.log.partition_log import Log
from gateway.core.log.partition_reader import Fetched, Reading
from gateway.core.log.position import Place
from gateway.core.log.record import Entry, Gap, Reason, Record, TopicPartition

pytestmark = pytest.mark.timeout(400)

SEEDS = 80  # the rarest is found by the 25th

Plant = Callable[[pytest.MonkeyPatch], None]
planted: list[Plant] = []


def plant(bug: Plant) -> Plant:
    planted.append(bug)
    return bug


@plant
def the_id_comes_before_the_data(patch: pytest.MonkeyPatch) -> None:
    render = Rendering.render

    def early(self: Rendering, events: Iterable[Event], view: bytes) -> bytes:
        blocks = render(self, events, view).split(b"\n\n")
        return b"\n\n".join(map(_id_first, blocks))

    patch.setattr(Rendering, "render", early)


def _id_first(block: bytes) -> bytes:
    lines = block.split(b"\n")
    return b"\n".join(sorted(lines, key=lambda line: not line.startswith(b"id:")))


@plant
def it_joins_the_ride_one_record_early(patch: pytest.MonkeyPatch) -> None:
    _joins(patch, lambda offset, end: offset == end - 1)


@plant
def it_joins_the_ride_without_waiting_for_the_head(patch: pytest.MonkeyPatch) -> None:
    _joins(patch, lambda offset, end: offset > end)


def _joins(patch: pytest.MonkeyPatch, too: Callable[[int, int], bool]) -> None:
    join = CatchUp.join

    def unequal(self: CatchUp, tp: TopicPartition) -> bool:
        own, ride = self._own, self._ride
        offset, end = own[tp].offset, ride.channel.tail.position[tp].offset
        known = not ride.bounded and offset is not None and end is not None
        if known and too(offset, end):
            own[tp] = own[tp]._replace(offset=end)
        return join(self, tp)

    patch.setattr(CatchUp, "join", unequal)


@plant
def a_jump_of_offsets_is_told_as_a_gap(patch: pytest.MonkeyPatch) -> None:
    on_fetched = Reading.on_fetched

    def guessing(self: Reading, fetched: Fetched, now: float) -> list[Entry]:
        at = self.place.offset
        out: list[Entry] = []
        for entry in on_fetched(self, fetched, now):
            if type(entry) is Record and at is not None and entry.offset > at:
                out.append(Gap(entry.tp, at, entry.offset, entry.epoch, Reason.RETENTION))
            at = entry.next
            out.append(entry)
        return out

    patch.setattr(Reading, "on_fetched", guessing)


@plant
def an_end_told_after_begin_is_where_to_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reading, "promise", lambda self: None)


@plant
def a_place_counts_before_its_gap_was_told(patch: pytest.MonkeyPatch) -> None:
    verified = Subscription.verified

    def hasty(self: Subscription, tp: TopicPartition, place: Place, gap: Gap | None = None) -> None:
        verified(self, tp, place, gap)
        self.part({tp: place})

    patch.setattr(Subscription, "verified", hasty)


@plant
def a_live_start_takes_any_end_it_is_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "FRESH_END", 1e9)


@plant
def a_place_of_a_log_that_went_back_stays(patch: pytest.MonkeyPatch) -> None:
    def stays(self: Log, place: Place) -> tuple[Gap | None, Place]:
        return None, place._replace(lineage=self.lineage)

    patch.setattr(Log, "rebase", stays)


@plant
def a_token_is_believed_before_the_shared_read_knows_the_leader(
    patch: pytest.MonkeyPatch,
) -> None:
    def any_time(self: Reading, epoch: int) -> bool:
        return self.leader is not None

    patch.setattr(Reading, "stands_on", any_time)


@plant
def who_falls_goes_on_where_the_channel_stands(patch: pytest.MonkeyPatch) -> None:
    fall = Subscription.fall

    def forgetful(self: Subscription, position: Any, *notices: Any, **how: Any) -> None:
        fall(self, dict(self.channel.tail.position), *notices, **how)

    patch.setattr(Subscription, "fall", forgetful)


@plant
def what_was_read_before_a_gap_comes_after_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backlog, "drop_fed", lambda self, tp: None)


@plant
def a_ride_is_forgotten_when_it_stops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "stop", lambda self, total: None)


@plant
def what_is_ones_own_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    add = Subscription.add

    def first_only(self: Subscription, *pieces: bytes) -> None:
        if self._ledger is None:
            add(self, *pieces)

    patch.setattr(Subscription, "add", first_only)


@pytest.mark.parametrize("bug", planted, ids=lambda bug: bug.__name__)
def test_the_model_finds_it(bug: Plant, monkeypatch: pytest.MonkeyPatch):
    bug(monkeypatch)
    with pytest.raises((Wrong, AssertionError)):
        for number in range(SEEDS):
            run(number, shrink=False)


def test_what_is_found_is_told_as_a_short_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """From one of the seeds at least: hypothesis shrinks for 500 tries and no longer."""
    it_joins_the_ride_one_record_early(monkeypatch)
    shortest = ""
    for number in range(SEEDS):
        try:
            run(number)
        except Wrong as found:
            story = "\n".join(getattr(found, "__notes__", [])) + capsys.readouterr().out
            shortest = min(filter(None, (shortest, story)), key=lambda each: each.count("state."))
        if 0 < shortest.count("state.") < 25:
            break
    assert "state.kafka(" in shortest
    assert shortest.count("state.") < 25
