"""Schedules: the same seed the same faults, and over many seeds all of them, also in pairs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from bench.faults.run import ACTIONS
from bench.faults.schedule import JOB_KINDS, KINDS, KINDS_BY_NAME, build_schedule, list_overlaps

SECONDS = 60
SEEDS = range(1, 201)
ALL_KINDS = [*KINDS, *JOB_KINDS]
SCHEDULES = [build_schedule(seed, SECONDS, ALL_KINDS) for seed in SEEDS]


def test_the_same_seed_has_the_same_schedule() -> None:
    assert [build_schedule(seed, SECONDS, ALL_KINDS) for seed in SEEDS] == SCHEDULES
    assert SCHEDULES[1] != SCHEDULES[2]


def test_each_kind_has_an_action_and_occurs_alone_and_with_others() -> None:
    assert ACTIONS.keys() == KINDS_BY_NAME.keys()
    for kinds in (KINDS, ALL_KINDS):
        schedules = [build_schedule(seed, SECONDS, kinds) for seed in SEEDS]
        counts = Counter(name for each in schedules for name in {fault.kind.name for fault in each})
        assert min(counts[kind.name] for kind in kinds) >= 10, counts
        pairs = {pair for each in schedules for pair in list_overlaps(each)}
        counts = Counter(name for pair in pairs for name in pair)
        assert min(counts[kind.name] for kind in kinds) >= 12, counts


def test_faults_lie_within_the_time_and_those_that_claim_the_same_never_overlap() -> None:
    for schedule in SCHEDULES:
        assert schedule
        for fault in schedule:
            assert fault.kind.shortest_s <= fault.duration_s <= fault.kind.longest_s
            assert fault.at_s >= 2
            assert fault.until_s <= SECONDS + 0.01
        for first, second in combinations(schedule, 2):
            assert not (first.kind.claims & second.kind.claims and first.overlaps(second))
