"""What several workers know, as one picture of which each change is told once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.counts import LATENCY_BUCKETS_S
from gateway.web.console.overview import Overview, Report
from gateway.web.console.partition_watch import SEVERITIES, PartitionKey, PartitionRow
from gateway.web.console.worker_report import MAX_SAMPLES, Incident, Sample

NONE = [0] * (len(LATENCY_BUCKETS_S) + 1)


def build_row(
    partition: int, state: str = "ready", since: float = 1.0, lag: int | None = 0
) -> PartitionRow:
    return PartitionRow("", "orders", partition, state, None, since, None, lag, 1)


def build_report(
    rows: Sequence[PartitionRow] = (),
    removed: Sequence[PartitionKey] = (),
    incidents: Sequence[Incident] = (),
    *,
    instance: str = "a",
    version: int = 1,
    clock: float = 1.0,
    delivered: int = 0,
    samples: Sequence[Sample] = (),
) -> Report:
    return {
        "instance": instance,
        "version": version,
        "rows": rows,
        "removed": removed,
        "incidentLog": "log",
        "incident": max((each.number for each in incidents), default=0),
        "incidents": incidents,
        "samples": samples,
        "counters": (clock, delivered, 0, 0, NONE, NONE),
        "reachable": {"": True},
        **dict.fromkeys(
            ("clients", "websockets", "behind", "rss", "memory", "memoryLimit", "pid"), 2
        ),
        "started": 1.0,
    }


def get_states(delta: dict[str, Any]) -> dict[int, str]:
    return {row.partition: row.state for row in delta.get("partitions", [])}


def test_a_partition_is_shown_as_the_worker_has_it_that_fares_worst():
    overview = Overview(2)
    one, other = build_row(0, "streaming", 5.0, 3), build_row(0, "leaderless", 9.0, None)
    delta = overview.apply({1: build_report([one]), 2: build_report([other])}, 0.0)
    (row,) = delta["partitions"]
    assert (row.state, row.since, row.lag) == ("leaderless", 9.0, 3)
    delta = overview.apply({1: build_report(), 2: build_report([build_row(0)], version=2)}, 0.1)
    assert get_states(delta) == {0: "ready"}


def test_what_did_not_change_is_not_told_again():
    overview = Overview(1)
    overview.apply({1: build_report([build_row(0), build_row(1)])}, 0.0)
    assert overview.describe_known() == {"1": ("a", 1, "log", 0, 0)}
    assert overview.apply({1: build_report()}, 0.1) == {}
    delta = overview.apply({1: build_report([build_row(1), build_row(2)])}, 0.2)
    assert get_states(delta) == {2: "ready"}


def test_a_worker_that_does_not_answer_has_no_partitions_and_reports_anew():
    overview = Overview(2)
    reports = {1: build_report([build_row(0)]), 2: build_report([build_row(1)])}
    overview.apply(reports, 0.0)
    delta = overview.apply({1: build_report()}, 1.0)
    assert delta["removed"] == [("", "orders", 1)]
    assert [each["up"] for each in delta["workers"]] == [True, False]
    assert overview.describe_known()["2"] == ("", 0, "log", 0, 0)
    assert get_states(overview.apply(reports, 2.0)) == {1: "ready"}


def test_a_worker_that_was_started_again_replaces_what_it_said():
    overview = Overview(1)
    overview.apply({1: build_report([build_row(0), build_row(1)])}, 0.0)
    delta = overview.apply({1: build_report([build_row(1)], instance="b")}, 0.1)
    assert delta["removed"] == [("", "orders", 0)] and "partitions" not in delta


def test_what_all_workers_report_is_one_incident():
    overview = Overview(2)
    lost = [Incident(n, at, "partition-lost", "orders", "orders-1") for n, at in ((1, 5.0), (2, 6))]
    delta = overview.apply(
        {1: build_report(incidents=lost[:1]), 2: build_report(incidents=lost[:1])}, 0.0
    )
    assert [each["number"] for each in delta["incidents"]] == [1]
    # The same worker says the same again: it has happened again.
    delta = overview.apply({1: build_report(incidents=lost[1:]), 2: build_report()}, 0.1)
    assert [each["number"] for each in delta["incidents"]] == [2]
    assert len(overview.build_snapshot()["incidents"]) == 2


def test_incidents_are_not_told_again_by_a_worker_that_missed_an_answer():
    """All of them came twice: what was known of its log was forgotten with its partitions."""
    overview = Overview(2)
    lost = Incident(1, 5.0, "partition-lost", "orders", "orders-1")
    overview.apply({1: build_report(), 2: build_report(incidents=[lost])}, 0.0)
    overview.apply({1: build_report()}, 10.0)
    assert overview.describe_known()["2"] == ("", 0, "log", 1, 0)


def test_figures_are_those_of_all_workers_that_answered():
    overview = Overview(3)
    overview.apply({1: build_report(), 2: build_report(clock=5.0)}, 0.0)
    delta = overview.apply(
        {1: build_report(clock=2.0, delivered=10), 2: build_report(clock=6.0, delivered=5)}, 1.0
    )
    figures = delta["figures"]
    assert (figures["clients"], figures["delivered"], figures["reachable"]) == (4, 15.0, {"": True})
    assert figures["latencyHigh"] is None
    assert [each["clients"] for each in delta["workers"]] == [2, 2, None]


def test_samples_of_all_workers_add_up_whenever_they_come():
    overview, slow = Overview(2), [*NONE[:-1], 1]
    one, other = Sample(7, 1.0, 2, NONE, 5), Sample(8, 1.5, 3, slow, 6)
    reports = {1: build_report(samples=[one, other]), 2: build_report(samples=[one])}
    delta = overview.apply(reports, 0.0)
    assert delta["history"] == [[7, 2.0, 4, None, 10], [8, 1.5, 3, LATENCY_BUCKETS_S[-1], 6]]
    assert [known[-1] for known in overview.describe_known().values()] == [8, 7]
    delta = overview.apply({1: build_report(), 2: build_report(samples=[other])}, 0.1)
    assert delta["history"] == [[8, 3.0, 6, LATENCY_BUCKETS_S[-1], 12]]
    later = [other._replace(number=7 + MAX_SAMPLES)]
    overview.apply({1: build_report(samples=later), 2: build_report()}, 0.2)
    # Whoever comes then sees those before, the oldest first.
    numbers = [each[0] for each in overview.build_snapshot()["history"]]
    assert numbers == [7, 8, 7 + MAX_SAMPLES]


@given(st.randoms(use_true_random=False))
def test_whoever_applies_all_deltas_has_the_snapshot(rng: random.Random):
    """Also while workers come, go and lose partitions."""
    overview, shown = Overview(2), dict[PartitionKey, PartitionRow]()
    for step in range(12):
        reports = {}
        for worker in (1, 2):
            if rng.random() < 0.2:
                continue
            rows = [
                build_row(n, rng.choice(list(SEVERITIES))) for n in range(4) if rng.random() < 0.4
            ]
            gone = [("", "orders", n) for n in range(4) if rng.random() < 0.2]
            removed = [key for key in gone if key not in {row.key for row in rows}]
            reports[worker] = build_report(rows, removed, instance=rng.choice("ab"), version=step)
        delta = overview.apply(reports, float(step))
        for key in delta.get("removed", ()):
            del shown[key]
        for row in delta.get("partitions", ()):
            assert shown.get(row.key) != row
            shown[row.key] = row
        assert sorted(shown.values()) == sorted(overview.build_snapshot()["partitions"])
