"""The sums of counters over workers that come and go."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.workers.counter_history import CounterHistory, ProcessSamples, build_report


def answer(gaps: int, lag: int = 0, started_at: float = 1.0) -> ProcessSamples:
    samples = MetricSamples()
    samples.add(catalog.GAPS, gaps, "orders", "retention")
    samples.add(catalog.CLIENTS_BEHIND_RECORDS, lag, "/a", "slow")
    return ProcessSamples(started_at, samples.to_json())


def scrape(history: CounterHistory, answers: Mapping[int, ProcessSamples]) -> MetricSamples:
    """What a scrape of some workers has in the end."""
    samples = MetricSamples()
    for each in answers.values():
        samples.merge(each.samples)
    history.update(build_report(answers), samples)
    return samples


def count_gaps(samples: MetricSamples) -> float:
    return float(sum(samples[catalog.GAPS].values()))


def test_a_counter_does_not_fall_while_a_worker_is_late():
    """Prometheus took a late worker for a restart, and its next answer for new gaps."""
    history = CounterHistory()
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(3)})) == 5
    late = scrape(history, {1: answer(2, lag=7)})
    assert count_gaps(late) == 5
    assert sum(late[catalog.CLIENTS_BEHIND_RECORDS].values()) == 7, "a gauge is what it is now"
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(4)})) == 6


def test_a_counter_does_not_fall_when_a_worker_crashed():
    history = CounterHistory()
    scrape(history, {1: answer(2), 2: answer(3)})
    assert count_gaps(scrape(history, {1: answer(2)})) == 5
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(0, started_at=2.0)})) == 5
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=2.0)})) == 6
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=3.0)})) == 7


def test_what_a_worker_answered_before_it_was_started_again_is_counted_once():
    """The answer was taken for one of the next process. When that ended before it had answered,
    what the first one had counted was in the sums twice, from then on."""
    history = CounterHistory()
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(3)})) == 5
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(4)})) == 6, "it runs no longer"
    assert count_gaps(scrape(history, {1: answer(2)})) == 6
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(0, started_at=3.0)})) == 6
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=3.0)})) == 7


def test_an_answer_that_was_overtaken_by_the_next_process_changes_nothing():
    history = CounterHistory()
    scrape(history, {1: answer(2), 2: answer(3)})
    scrape(history, {1: answer(2), 2: answer(1, started_at=2.0)})
    scrape(history, {1: answer(2), 2: answer(3)})
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=2.0)})) == 6
