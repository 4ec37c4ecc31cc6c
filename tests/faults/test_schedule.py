"""Schedules: the same seed the same faults, and over many seeds all of them, also in pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from bench.faults.run import ACTIONS
from bench.faults.schedule import (
    JOB_KINDS,
    KINDS,
    KINDS_BY_NAME,
    FaultKind,
    build_schedule,
    list_overlaps,
)

SECONDS = 60
SEEDS = range(1, 201)
SCHEDULES = [build_schedule(seed, SECONDS) for seed in SEEDS]
WITH_AND_WITHOUT_A_JOB = pytest.mark.parametrize(
    "kinds", [KINDS, [*KINDS, *JOB_KINDS]], ids=["alone", "with a Spark job"]
)


def test_the_same_seed_has_the_same_schedule() -> None:
    assert [build_schedule(seed, SECONDS) for seed in SEEDS] == SCHEDULES
    assert SCHEDULES[1] != SCHEDULES[2]


def test_there_is_an_action_for_each_kind_and_no_other() -> None:
    assert ACTIONS.keys() == KINDS_BY_NAME.keys()


@WITH_AND_WITHOUT_A_JOB
def test_each_kind_occurs_in_at_least_ten_of_two_hundred_seeds(kinds: Sequence[FaultKind]) -> None:
    schedules = [build_schedule(seed, SECONDS, kinds) for seed in SEEDS]
    counts = Counter(name for each in schedules for name in {fault.kind.name for fault in each})
    assert min(counts[kind.name] for kind in kinds) >= 10, counts


@WITH_AND_WITHOUT_A_JOB
def test_each_kind_overlaps_with_at_least_twelve_others(kinds: Sequence[FaultKind]) -> None:
    pairs = {pair for seed in SEEDS for pair in list_overlaps(build_schedule(seed, SECONDS, kinds))}
    counts = Counter(name for pair in pairs for name in pair)
    assert min(counts[kind.name] for kind in kinds) >= 12, counts


def test_faults_that_claim_the_same_never_overlap() -> None:
    for schedule in SCHEDULES:
        for index, first in enumerate(schedule):
            for second in schedule[index + 1 :]:
                assert not (first.kind.claims & second.kind.claims and first.overlaps(second))


def test_all_faults_lie_within_the_time_and_have_their_duration() -> None:
    for schedule in SCHEDULES:
        assert schedule
        for fault in schedule:
            assert fault.kind.shortest_s <= fault.duration_s <= fault.kind.longest_s
            assert fault.at_s >= 2
            assert fault.until_s <= SECONDS + 0.01


def test_a_short_schedule_of_cheap_faults_has_some() -> None:
    cheap = [kind for kind in KINDS if kind.is_cheap]
    assert all(len(build_schedule(seed, 15, cheap)) >= 3 for seed in range(50))
