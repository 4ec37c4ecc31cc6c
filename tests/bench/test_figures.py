"""Every measurement runs, with sizes too small to mean anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.brokers import KafkaCluster

from bench import (
    backoff,
    begin,
    codec,
    failover,
    fanout,
    figures,
    latency,
    rebalance,
    results,
    resume,
    retention,
    slow,
)
from bench.figure import Figure, median, quantile, summarize_times
from bench.kafka import MockKafka, RealKafka
from gateway.kafka.embedded import EmbeddedKafka


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    with EmbeddedKafka() as embedded:
        yield MockKafka(embedded)


@pytest.fixture
def mock3() -> Iterator[MockKafka]:
    with EmbeddedKafka(nodes=3) as embedded:
        yield MockKafka(embedded)


@pytest.fixture
def real(kafka: KafkaCluster) -> RealKafka:
    """For what is counted by the proxy, which does not read the mock's Metadata."""
    return RealKafka(kafka)


def value(of: Sequence[Figure], words: str) -> float:
    (found,) = [figure.value for figure in of if words in figure.what]
    return found


async def test_begin_is_measured_warm_cold_and_of_a_new_process(mock):
    size = begin.Size(
        warm_connects=3,
        cold_topics=2,
        wide_topics=1,
        process_starts=1,
        running_connects=2,
        partitions=3,
        wide_partitions=20,
        rate=100,
    )
    found = await begin.measure(mock, size)
    assert value(found, "warm, 3 partitions, p50") > 0
    assert value(found, "cold topic, 20 partitions, p50") > 0
    assert value(found, "cold process, 3 partitions, p50") > 0
    assert value(found, "first record after BEGIN, 100 msg/s, p50") >= 0


async def test_begin_is_measured_without_a_leader_of_one_partition(mock3):
    size = begin.LeaderlessSize(warm_connects=2, cold_topics=2, gated_topics=1, partitions=4)
    found = await begin.measure_leaderless(mock3, size)
    waited = value(found, "a gate on all of them, p50")
    assert 0 < value(found, "cold topic, 4 partitions, one without a leader, p50") < waited
    assert 0 < value(found, "warm, 4 partitions, one without a leader, p50") < waited


async def test_latency_is_of_every_record_at_every_client(mock):
    found = await latency.measure(mock, latency.Size(clients=3, partitions=2, seconds=0.5))
    (p50,) = [f for f in found if "received" in f.what and "p50" in f.what]
    (delivered,) = [f for f in found if "one delivery" in f.what]
    assert p50.n == delivered.n > 0


async def test_failover_tells_the_hurt_partitions_from_the_others(mock3):
    found = await failover.measure(mock3, failover.Size(quiet_s=0.2))
    for how in ("killed", "frozen"):
        assert value(found, f"{how} leader: its partitions silent") > 0
        assert value(found, f"{how} leader: the others silent") > 0


async def test_rebalance_tells_the_restarted_members_partitions_from_the_others(real):
    cases = (rebalance.Case(6, 0.2), rebalance.Case(6, 0.2, protocol="classic"))
    size = rebalance.Size(cases, partitions=2, members=2, quiet_s=0.2, away_s=0.2)
    found = await rebalance.measure(real, size)
    assert len(found) == 4
    for figure in found:
        assert figure.value > 0


async def test_backoff_counts_what_a_lost_broker_is_asked(real):
    size = backoff.Size(
        partitions=2, outage_s=0.5, error_s=0.3, return_count=1, short_outage_s=0.2, rate=100
    )
    found = await backoff.measure(real, size)
    assert value(found, "gone 0.5 s: requests and connects") > 0
    assert value(found, "error in each Fetch: requests") > 0


async def test_a_stalled_client_gets_everything_in_the_end(mock):
    size = slow.Size(clients=3, partitions=2, value_bytes=20_000, quiet_s=0.5, stall_s=1.0)
    found = await slow.measure(mock, size)
    assert value(found, "each once") == 100
    assert value(found, "one of 3 clients stalled for 1 s, p50") > 0


async def test_every_advance_of_the_log_start_is_one_gap(real):
    found = await retention.measure(real, retention.Size(advances=3, lost_records=2, clients=2))
    assert value(found, "gaps told of an advance, fewest") == 1
    assert value(found, "gaps told of an advance, most") == 1
    assert value(found, "ListOffsets of an advance") > 0


async def test_those_who_come_back_get_what_they_missed(real):
    found = await resume.measure(real, resume.Size(clients=3, missed_records=40, partitions=2))
    for figure in found:
        if "all have all" in figure.what:
            assert figure.n == 3 * 40
    assert value(found, "after a restart, 3 x 40 records: fetches") > 0


async def test_fanout_delivers_every_record_to_every_client(mock):
    size = fanout.Size(
        clients=2, records_alone=500, records_shared=200, partitions=2, rate=100, seconds=0.5
    )
    found = await fanout.measure(mock, size)
    assert value(found, "at once, 2 clients: deliveries of a CPU second") > 0
    assert value(found, "paced 100/s, 2 clients: deliveries of a CPU second") > 0


async def test_decoding_and_encoding_are_measured_without_kafka():
    size = codec.Size(
        record_count=40, repeats=1, partitions=2, batch_sizes=[10], update_sizes=[10], clients=2
    )
    found = await codec.measure(None, size)
    assert all(figure.value > 0 for figure in found)


def test_every_measurement_can_be_asked_for_by_name():
    modules = {
        backoff, begin, codec, failover, fanout, latency, rebalance, resume, retention, slow,
    }  # fmt: skip
    named = {
        name: measure for name, (_, measure) in figures.MEASUREMENTS.items() if "-" not in name
    }
    assert named == {module.__name__.split(".")[-1]: module.measure for module in modules}


def test_quantiles_are_samples():
    assert [quantile([4, 1, 3, 2], q) for q in (0.25, 0.5, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert median([7]) == 7


def test_a_99th_percentile_is_not_claimed_of_few_samples():
    assert [figure.what for figure in summarize_times("warm", [0.1] * 99)] == [
        "warm, p50",
        "warm, worst",
    ]
    assert [figure.what for figure in summarize_times("warm", [0.1] * 100)] == [
        "warm, p50",
        "warm, p99",
    ]


def test_runs_of_a_day_are_appended_as_table_and_as_json_lines(tmp_path: Path):
    machine = results.describe_machine("a quiet machine")
    for n in (1.0, 2.0):
        path = results.save_figures(machine, {"begin": [Figure("warm", n, "ms", 3)]}, tmp_path)
    assert path.read_text().count("| begin | warm | ") == 2
    lines = [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]
    assert [line["figures"][0]["value"] for line in lines] == [1.0, 2.0]
    assert {"date", "python", "uvicorn", "uvloop", "aiokafka", "kafka", "cores"} <= lines[0].keys()


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (0.12345, "0.123"), (99.94, "99.9"), (123.4, "123"), (1234567, "1,230,000")],
)
def test_three_digits_are_shown(number: float, shown: str):
    assert results.format_number(number) == shown
