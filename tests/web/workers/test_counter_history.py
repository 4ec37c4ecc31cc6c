"""The sums of counters over workers that come and go."""

from __future__ import annotations

from typing import Any

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.workers.counter_history import CounterHistory, build_report


def answer(gaps: int, lag: int = 0) -> dict[str, Any]:
    samples = MetricSamples()
    samples.add(catalog.GAPS, gaps, "orders", "retention")
    samples.add(catalog.CLIENTS_BEHIND_RECORDS, lag, "/a", "slow")
    return samples.to_json()


def scrape(history: CounterHistory, answers: dict[int, Any], running: set[int]) -> MetricSamples:
    """What a scrape of workers 1 and 2 has in the end."""
    samples = MetricSamples()
    for each in answers.values():
        samples.merge(each)
    history.update(build_report(answers, {1, 2} - answers.keys()), running, samples)
    return samples


def count_gaps(samples: MetricSamples) -> float:
    return float(sum(samples[catalog.GAPS].values()))


def test_a_counter_does_not_fall_while_a_worker_is_late():
    """Prometheus took a late worker for a restart, and its next answer for new gaps."""
    history = CounterHistory()
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(3)}, {1, 2})) == 5
    late = scrape(history, {1: answer(2, lag=7)}, {1, 2})
    assert count_gaps(late) == 5
    assert sum(late[catalog.CLIENTS_BEHIND_RECORDS].values()) == 7, "a gauge is what it is now"
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(4)}, {1, 2})) == 6


def test_a_counter_does_not_fall_when_a_worker_crashed():
    history = CounterHistory()
    scrape(history, {1: answer(2), 2: answer(3)}, {1, 2})
    history.end_worker(2)
    assert count_gaps(scrape(history, {1: answer(2)}, {1})) == 5
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(0)}, {1, 2})) == 5
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1)}, {1, 2})) == 6


def test_what_a_worker_answered_before_it_ended_is_counted_once():
    history = CounterHistory()
    scrape(history, {1: answer(2), 2: answer(3)}, {1, 2})
    history.end_worker(2)
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(3)}, {1})) in (5, 8)
    assert count_gaps(scrape(history, {1: answer(2)}, {1})) == 5
