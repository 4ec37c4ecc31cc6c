"""Schedules: the same seed the same faults, and over many seeds all of them, also in pairs."""

from __future__ import annotations

from collections import Counter

from faults.schedule import KINDS, build_schedule, list_overlaps

SECONDS = 60
SCHEDULES = [build_schedule(seed, SECONDS) for seed in range(200)]


def test_the_same_seed_has_the_same_schedule() -> None:
    assert [build_schedule(seed, SECONDS) for seed in range(200)] == SCHEDULES
    assert SCHEDULES[1] != SCHEDULES[2]


def test_each_kind_occurs_in_at_least_ten_of_two_hundred_seeds() -> None:
    counts = Counter(name for each in SCHEDULES for name in {fault.kind.name for fault in each})
    assert min(counts[kind.name] for kind in KINDS) >= 10, counts


def test_every_kind_overlaps_with_others() -> None:
    pairs = set().union(*map(list_overlaps, SCHEDULES))
    assert {name for pair in pairs for name in pair} == {kind.name for kind in KINDS}
    assert len(pairs) > 100


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
