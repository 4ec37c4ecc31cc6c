"""Every measurement runs, with sizes too small to mean anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.brokers import KafkaCluster

from bench import (
    backoff,
    begin,
    catalog,
    codec,
    failover,
    rebalance,
    report,
    results,
    retention,
    slow,
)
from bench.figure import Figure, median, quantile, summarize_times
from bench.journal import Run
from bench.kafka import MockKafka, RealKafka
from bench.works import alone
from gateway.kafka.embedded import EmbeddedKafka

EMBEDDED: dict[str, tuple[Any, Any]] = {
    "begin": (
        begin.measure,
        begin.Size(
            warm_connects=3, cold_topics=2, wide_topics=1, process_starts=1, running_connects=2,
            partitions=3, wide_partitions=20, rate=100,
        ),
    ),
    "begin-leaderless": (
        begin.measure_leaderless,
        begin.LeaderlessSize(warm_connects=2, cold_topics=2, gated_topics=1, partitions=4),
    ),
    "codec": (
        codec.measure,
        codec.Size(
            record_count=40, repeats=1, partitions=2, batch_sizes=[10], update_sizes=[10],
            clients=2,
        ),
    ),
    "failover": (failover.measure, failover.Size(quiet_s=0.2)),
    "slow": (
        slow.measure,
        slow.Size(clients=3, partitions=2, value_bytes=20_000, quiet_s=0.5, stall_s=1.0),
    ),
}  # fmt: skip
REAL: dict[str, tuple[Any, Any]] = {
    "backoff": (
        backoff.measure,
        backoff.Size(
            partitions=2, outage_s=0.5, error_s=0.3, return_count=1, short_outage_s=0.2, rate=100
        ),
    ),
    "rebalance": (
        rebalance.measure,
        rebalance.Size(
            (rebalance.Case(6, 0.2), rebalance.Case(6, 0.2, protocol="classic")),
            partitions=2, members=2, quiet_s=0.2, away_s=0.2,
        ),
    ),
    "retention": (retention.measure, retention.Size(advances=3, lost_records=2, clients=2)),
}  # fmt: skip


@pytest.mark.night
@pytest.mark.parametrize("name", EMBEDDED)
async def test_a_measurement_gives_its_figures(name: str):
    measure, size = EMBEDDED[name]
    with EmbeddedKafka(nodes=3) as embedded:
        check_figures(await measure(MockKafka(embedded), size))


@pytest.mark.night
@pytest.mark.parametrize("name", REAL)
async def test_a_measurement_of_a_real_kafka_gives_its_figures(kafka: KafkaCluster, name: str):
    """What is counted by the proxy, which does not read the mock's Metadata."""
    measure, size = REAL[name]
    check_figures(await measure(RealKafka(kafka), size))


def check_figures(found: list[Figure]) -> None:
    assert found
    for figure in found:
        assert figure.value >= 0 and figure.n > 0, figure
        assert "each once" not in figure.what or figure.value == 100, figure
        assert "gaps told of an advance" not in figure.what or figure.value == 1, figure


def test_every_measurement_is_a_work_of_the_gateway_alone():
    named = {name: measure for name, (_, measure) in catalog.ALONE.items()}
    named.pop("long-retention")
    assert named == {name: measure for name, (measure, _) in {**EMBEDDED, **REAL}.items()}
    for name in named:
        assert [each.name for each in catalog.PEERS if catalog.takes_part(each, name)] == [
            "gateway-sse"
        ]


async def test_a_measurement_becomes_a_table_with_a_column_for_each_unit(tmp_path: Path):
    async def measure(_: Any) -> list[Figure]:
        return [Figure("warm", 2.0, "ms", 3), Figure("fetches", 7, "requests")]

    run = Run.create(tmp_path, {}, {"works": ["begin"], "peers": ["gateway-sse"]})
    kafka: Any = None
    cell = await alone.run(kafka, catalog.STREAM_PEERS[0], measure)
    run.add_cell("begin", "gateway-sse", cell)
    table = report.render_markdown(run)
    assert "| case | peer | ms | requests |" in table
    assert "| warm | gateway-sse | 2 |  |" in table
    assert "| fetches | gateway-sse |  | 7 |" in table


def test_quantiles_are_samples_and_a_99th_percentile_needs_a_hundred():
    assert [quantile([4, 1, 3, 2], q) for q in (0.25, 0.5, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert median([7]) == 7
    assert [each.what for each in summarize_times("warm", [0.1] * 99)] == [
        "warm, p50",
        "warm, worst",
    ]
    assert [each.what for each in summarize_times("warm", [0.1] * 100)] == [
        "warm, p50",
        "warm, p99",
    ]


def test_runs_of_a_day_are_appended_as_table_and_as_json_lines(tmp_path: Path):
    machine = {"date": "2026-03-01T12:00:00+00:00", "cores": 2}
    for n in (1.0, 2.0):
        path = results.save_figures(machine, {"begin": [Figure("warm", n, "ms", 3)]}, tmp_path)
    assert path.read_text().count("| begin | warm | ") == 2
    lines = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert [line["figures"][0]["value"] for line in lines] == [1.0, 2.0]


def test_three_digits_are_shown():
    numbers = {0: "0", 0.12345: "0.123", 99.94: "99.9", 123.4: "123", 1234567: "1,230,000"}
    assert {number: results.format_number(number) for number in numbers} == numbers
