"""A soak of seconds, which looks for what is left behind, and the verdicts on made-up results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.faults.soak.census import Census, list_leftovers
from bench.faults.soak.report import build_report
from bench.faults.soak.result import WORKER_WARM_UP_S, Sample, SoakResult, WorkerSample
from bench.faults.soak.run import SoakOptions, run_soak

SHORT = SoakOptions(
    minutes=0.2, clients=60, rate=200.0, nodes=1, faults=(), sample_s=1.0, mean_stay_s=2.0
)
FLAT = [100.0] * 60


def build_result(megabytes: list[float], p50_ms: list[float]) -> SoakResult:
    """Ten minutes with a sample every ten seconds, after the ten in which a worker warms up."""
    result = SoakResult(20.0, 100, 100.0, 1, warm_up_s=0.0)
    result.samples.append(Sample(0.0, 100, {}, [WorkerSample(7, 2**20, 50)], is_quiet=False))
    for number, (size, latency) in enumerate(zip(megabytes, p50_ms, strict=True)):
        worker = WorkerSample(7, int(size * 2**20), 50)
        at_s = WORKER_WARM_UP_S + 10.0 * (number + 1)
        result.samples.append(
            Sample(at_s, 100, {}, [worker], 10, latency / 1000, 3 * latency / 1000)
        )
    return result


@pytest.mark.night
@pytest.mark.timeout(300)
async def test_nothing_is_left_of_clients_that_are_gone() -> None:
    lines: list[str] = []
    result = await run_soak(SHORT, lambda at_s, line: lines.append(line))
    assert not list(result.list_problems(with_times=False))
    assert len(lines) == len(result.samples) > 5
    assert result.visits > 2 * SHORT.clients
    assert sum(each.records for each in result.samples) > 500
    assert "<polyline" in build_report(result)


def list_problems(megabytes: list[float], p50_ms: list[float]) -> list[str]:
    return list(build_result(megabytes, p50_ms).list_problems())


def test_memory_or_latency_that_grows_fails_a_soak() -> None:
    growing = [100 + 0.05 * n for n in range(60)]  # 3 % in ten minutes
    outliers = [300.0 if n % 10 == 9 else 100.0 for n in range(60)]
    too_short = ["too short to tell whether memory grows"]
    assert list_problems(outliers, FLAT) == []
    assert list_problems(growing, FLAT) == ["memory of process 7 grows by 2.96 % in ten minutes"]
    assert list_problems(FLAT[:10], FLAT[:10]) == too_short
    assert list_problems(FLAT, [1.0] * 30 + [1.5] * 30) == [
        "the p50 of latency is 1.50 times that of the beginning",
        "the p99 of latency is 1.50 times that of the beginning",
    ]


def test_a_worker_that_was_started_a_short_time_ago_may_grow() -> None:
    """Soaks failed for each worker that took the place of a killed one: its cache was empty."""
    result = build_result(FLAT, FLAT)
    for number, sample in enumerate(result.samples[30:]):
        sample.workers.append(WorkerSample(8, (number + 1) * 2**20, 50))
    assert not list(result.list_problems())
    assert result.compute_slopes().keys() == {7}


def test_windows_with_faults_do_not_count_for_latency() -> None:
    result = build_result(FLAT, [1.0] * 50 + [9.0] * 10)
    result.samples[51:] = [replace(each, is_quiet=False) for each in result.samples[51:]]
    assert not list(result.list_problems())


def test_what_a_worker_has_more_of_is_named() -> None:
    before = Census({"serve": 1}, {"gateway.hub.fanout.client.Client": 1}, 0, 20)
    after = Census(
        {"serve": 1, "read": 2},
        {"gateway.hub.fanout.client.Client": 4, "gateway.kafka.Connection": 9, "builtins.dict": 9},
        client_sockets=1,
        other_descriptors=21,
    )
    assert list(list_leftovers(before, after)) == [
        "2 of task read",
        "3 of object gateway.hub.fanout.client.Client",
        "1 connections of clients",
        "1 descriptors",
    ]
