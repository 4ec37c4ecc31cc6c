"""The sums of counters over workers that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.admin.metrics import CounterHistory, ProcessSamples, build_report, merge_answers

clock = count(1)  # when each answer is collected


def answer(gaps: float, lag: int = 0, started_at: float = 1.0) -> ProcessSamples:
    samples = MetricSamples()
    samples.add(catalog.GAPS, gaps, "orders", "retention")
    samples.add(catalog.CLIENTS_BEHIND_RECORDS, lag, "/a", "slow")
    return ProcessSamples(started_at, next(clock), samples.to_json())


def scrape(history: CounterHistory, answers: Mapping[int, ProcessSamples]) -> MetricSamples:
    """What a scrape of some workers has in the end."""
    samples = MetricSamples()
    totals = history.update(build_report(answers))
    for _ in merge_answers(answers, totals, samples):
        pass
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


def test_a_scrape_that_was_overtaken_by_the_next_process_counts_the_ended_one_once():
    """What the ended process had counted was in the sums of that scrape twice, and the sums of the
    next one were lower."""
    history = CounterHistory()
    scrape(history, {1: answer(2), 2: answer(3)})
    overtaken = {1: answer(2), 2: answer(3, lag=7)}
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=2.0)})) == 6
    samples = scrape(history, overtaken)
    assert count_gaps(samples) == 6
    assert sum(samples[catalog.CLIENTS_BEHIND_RECORDS].values()) == 7, "gauges are as it has them"
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(1, started_at=2.0)})) == 6


def test_an_answer_that_was_overtaken_by_a_later_one_lowers_nothing():
    """The greater counters of the later answer were forgotten: the sums fell while the worker was
    late, and for good when its process had ended."""
    history = CounterHistory()
    overtaken = {1: answer(2), 2: answer(3)}
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(4)})) == 6
    assert count_gaps(scrape(history, overtaken)) == 6
    assert count_gaps(scrape(history, {1: answer(2)})) == 6
    assert count_gaps(scrape(history, {1: answer(2), 2: answer(0, started_at=2.0)})) == 6


def test_sums_do_not_fall_when_workers_answer_in_another_order():
    """0.1 + 0.2 + 0.3 is greater than 0.3 + 0.2 + 0.1 in floats, and Prometheus took the difference
    for a restart of the gateway."""
    history = CounterHistory()
    values = {1: 0.1, 2: 0.2, 3: 0.3}
    sums = [
        count_gaps(scrape(history, {worker: answer(values[worker]) for worker in answering}))
        for answering in ((1, 2, 3), (3, 2, 1), (2, 3), (1, 2), ())
    ]
    restarted = {worker: answer(0, started_at=2.0) for worker in (1, 2, 3)}
    sums.append(count_gaps(scrape(history, restarted)))
    assert sums == [sums[0]] * 6


def test_a_series_that_is_0_stays_when_its_worker_was_restarted():
    history = CounterHistory()
    scrape(history, {1: answer(0)})
    samples = scrape(history, {1: answer(0, started_at=2.0)})
    assert list(samples[catalog.GAPS].values()) == [0]
