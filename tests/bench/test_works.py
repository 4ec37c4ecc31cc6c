"""Every work runs, with sizes too small to mean anything."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections import Counter
from importlib import import_module
from typing import Any

import pytest
from support.brokers import KafkaCluster
from support.proxies import Proxy

from bench import catalog
from bench.feed import Wire
from bench.kafka import Kafka
from bench.peers import orders
from bench.peers.gateway_peer import GatewayPeer
from bench.peers.others import SharedConsumer
from bench.peers.peer import ENVIRONMENT, ROOT, Peer, ServerShape
from bench.peers.raw import RawLoop
from bench.peers.transfer_servers import TransferPeer
from bench.results import Cell
from bench.works import broadcast, catchup, rebalance
from bench.works.work import note_failure, open_pool
from gateway.hub.wires.wire import END_RETRY_RANGE_S

SSE, WS = Wire
WORKS: dict[str, dict[str, Any]] = {
    "broadcast": {"clients": (3,), "repeat_s": 0.05, "batch_records": 10},
    "pace": {"clients": 6, "has_own_keys": True, "rate": 200, "seconds": 0.3, "workers": 2},
    "storm": {"clients": 20, "repeats": 1, "settle_s": 0.1},
    "idle": {"clients": 20, "first_clients": 5, "settle_s": 0.2},
    "partitions": {
        "partitions": (12, 600), "clients": 2, "round_records": 300, "rounds": 2, "repeats": 1,
    },
    "deflate": {"clients": 3, "repeat_s": 0.2, "batch_sizes": (5,), "repeats": 2},
    "loop": {"clients": 5, "rate": 50, "seconds": 0.3, "brief_clients": 2},
    "crowd": {"clients": 8, "first_clients": 2, "worker_counts": (1, 2), "records": 1},
    "overload": {
        "clients": 10, "spare_clients": 1, "arriving_clients": 30, "calm_rate": 50, "calm_s": 0.4,
        "load_rate": 200, "load_s": 0.6, "timed_every": 1,
    },
    "million": {"counts": (10, 30), "records": 1, "idle_s": 0.1},
    "begin": {"topics": ((2, 3), (1, 20)), "warm_connects": 3, "starts": 1, "rate": 100},
}  # fmt: skip
CROWD_PHASES = ["open", "records", "idle", "scrape", "list", "drain", "return"]


@pytest.fixture
def real(kafka: KafkaCluster) -> KafkaCluster:
    """For what is counted by the proxy, which does not read the mock's Metadata."""
    return kafka


async def run(name: str, kafka: Kafka, peer: Any, **options: Any) -> Cell:
    module = import_module(f"bench.works.{name}")
    cell: Cell = await module.run(kafka, peer, module.Size(**options))
    return cell


def get_value(cell: Cell, what: str, case: str = "") -> float:
    (found,) = [row.value for row in cell.rows if row.what == what and case in row.case]
    return found


def check_cell(cell: Cell) -> None:
    assert cell.rows
    for row in cell.rows:
        assert row.what not in ("lost", "twice", "damaged") or row.value == 0, row
        assert row.what != "delivered in time" or row.value == 100, row
    assert not [note for note in cell.notes if "damaged" in note or "failed" in note]


@pytest.mark.night
@pytest.mark.parametrize("wire", Wire, ids=str)
@pytest.mark.parametrize("name", WORKS)
async def test_a_work_gives_its_figures_and_loses_nothing(mock: Kafka, name: str, wire: Wire):
    check_cell(await run(name, mock, GatewayPeer(wire), **WORKS[name]))


@pytest.mark.night
@pytest.mark.parametrize("peer", catalog.STREAM_PEERS, ids=lambda peer: peer.name)
async def test_a_peer_that_is_installed_delivers(mock: Kafka, peer: Peer):
    if missing := peer.describe_missing():
        pytest.skip(f"{peer.name} needs {missing}")
    size = broadcast.Size(clients=(3,), repeat_s=0.05, repeats=2)
    check_cell(await broadcast.run(mock, peer, size))


@pytest.mark.night
@pytest.mark.parametrize("wire", Wire, ids=str)
async def test_the_raw_loop_writes_what_the_gateway_writes(mock: Kafka, wire: Wire):
    """But for what is in a value and in a token, whose lengths differ by a few characters."""
    raw, ours = [await read_delivery(mock, peer) for peer in (RawLoop(wire), GatewayPeer(wire))]
    assert remove_numbers(raw) == remove_numbers(ours)
    assert abs(len(raw) - len(ours)) < 30


def remove_numbers(delivery: bytes) -> bytes:
    for numbers in (
        rb"(?<=^)[\da-f]{3}(?=\r\n)",  # of a chunk
        rb"(?<=^\x81\x7e)..",  # of a message
        rb'(?<=id: )\S+|(?<="position":")[^"]+',
        rb'(?<="at":)\d+,"n":\d+,"pad":"x+',
    ):
        delivery = re.sub(numbers, b"*", delivery, flags=re.DOTALL)
    return delivery


async def read_delivery(mock: Kafka, peer: Peer) -> bytes:
    async with peer.serve(mock, ServerShape()) as served, open_pool(served, peer, 1) as pool:
        with socket.create_connection(("127.0.0.1", served.port), 30) as client:
            client.sendall(served.build_request(1, b""))
            while b"\r\n\r\n" not in (head := client.recv(1 << 16)):
                pass
            if peer.greeting:
                while peer.greeting not in head:
                    head += client.recv(1 << 16)
            served.feed.send()
            assert await pool.wait_for_records(pool.record_count + 1)
            data = b""
            while b'"~"' not in data or not data.endswith((b"\r\n", b"}")):
                data += client.recv(1 << 16)
        return data


@pytest.mark.night
@pytest.mark.parametrize("wire", Wire, ids=str)
async def test_nothing_is_lost_by_a_cut_or_a_restart(real: KafkaCluster, wire: Wire):
    cases = (
        catchup.Case("cut", 3, 40, repeats=2),
        catchup.Case("restart", 3, 40, restarts_server=True),
    )
    cell = await catchup.run(real, GatewayPeer(wire), catchup.Size(cases=cases, rate=50))
    check_cell(cell)
    assert get_value(cell, "fetches", "restart") > 0


@pytest.mark.night
async def test_what_a_server_forgets_is_counted_as_lost(mock: Kafka):
    size = catchup.Size(cases=(catchup.Case("cut", 2, 30),), has_proxy=False, stall_timeout_s=0.3)
    cell = await catchup.run(mock, SharedConsumer(SSE), size)
    assert get_value(cell, "lost", "cut") > 30, "of 60; on a busy machine it has the last"


@pytest.mark.night
@pytest.mark.parametrize("work", ["produce", "consume"])
async def test_a_sidecar_and_its_library_carry_all_records(real: KafkaCluster, work: str):
    check_cell(
        await run(
            "transfer", real, TransferPeer(), work=work, records=60, clients=2, batch_records=10,
            partitions=4, rounds=1, formats=("json",),
        )
    )  # fmt: skip


@pytest.mark.night
@pytest.mark.parametrize("work", ["failover", "begin"])
async def test_a_lost_leader_is_measured(kafka3: KafkaCluster, work: str):
    options = {"quiet_s": 0.2} if work == "failover" else {
        "is_leaderless": True, "topics": ((2, 4),), "warm_connects": 2,
    }  # fmt: skip
    check_cell(await run(work, kafka3, GatewayPeer(SSE), **options))


@pytest.mark.night
async def test_a_group_goes_on_when_a_member_is_replaced(real: KafkaCluster):
    protocols = rebalance.list_cases("consumer"), rebalance.list_cases("classic")
    cases = [each for cases in protocols for each in cases if each.ending != "killed"]
    cell = await run(
        "rebalance", real, None, cases=cases, repeats=1, partitions=4, members=2, rate=200.0,
        quiet_s=0.2, away_s=0.2,
    )  # fmt: skip
    check_cell(cell)
    assert len(cell.rows) == 3 * len(cases)


@pytest.mark.night
@pytest.mark.needs("chromium")
async def test_the_page_of_the_console_is_watched_in_each_condition():
    cell = await run("console", None, None, partitions=30, clients=3, seconds=0.5)  # type: ignore[arg-type]
    assert len({row.case for row in cell.rows}) == 5
    assert all(row.n > 0 for row in cell.rows if row.what.startswith("between two frames"))


def list_proxies() -> list[Any]:
    from bench.works.rolling import PROXIES

    return [pytest.param(k, id=n, marks=pytest.mark.needs(n)) for n, k in PROXIES.items()]


@pytest.mark.night
@pytest.mark.parametrize("kind", list_proxies())
async def test_a_rolling_restart_costs_no_record_and_spreads_the_reconnects(
    mock: Kafka, kind: type[Proxy]
):
    """60 clients: EventSources over HTTP/1.1 and HTTP/2, and WebSockets."""
    from bench.works import rolling

    size = rolling.Size(clients=60, rate=20, waits_for_clients=False)
    restarts, lost, twice = await rolling.run_rolling_restart(mock, kind, size)
    assert (lost, twice) == (0, 0)
    low_s, high_s = END_RETRY_RANGE_S
    for restart in restarts:
        told = Counter(int(delay_s) for delay_s in restart.told_delays_s)
        even = restart.ended_count / (high_s - low_s)
        assert restart.ended_count > 0
        assert max(told.values()) <= 1.5 * even + 2


@pytest.mark.night
@pytest.mark.parametrize("own_keys", [False, True])
async def test_very_many_clients_leave_nothing_for_a_collection(mock: Kafka, own_keys: bool):
    """With a million clients a full collection takes seconds. A scrape and a list leave some."""
    options = {
        "servers": mock.bootstrap_servers, "topic": mock.create_unique_topic(), "counts": [20, 40],
        "own_keys": own_keys, "records": 2, "idle_s": 0.1,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.crowded_gateway", json.dumps(options)),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    results = [json.loads(line) for line in output.splitlines()]
    assert [each["clients"] for each in results] == [20, 40]
    assert all(list(each["phases"]) == CROWD_PHASES for each in results)
    assert results[1]["garbage"] < results[0]["garbage"] + 20


def test_a_case_that_fails_is_noted_and_the_others_are_kept():
    cell = Cell()
    with note_failure(cell, "plain"):
        raise ConnectionError("the server closed")
    with note_failure(cell, "compressed"):
        cell.add_row("compressed", "rounds", "1/s", 1.0)
    assert cell.notes == ["plain: failed, ConnectionError('the server closed')"]
    assert get_value(cell, "rounds") == 1.0


def test_every_work_has_a_size_and_somebody_who_does_it():
    for name, work in catalog.WORKS.items():
        import_module(f"bench.works.{work.module}").Size(**work.options)
        assert any(catalog.takes_part(peer, name) for peer in catalog.PEERS), name


def test_an_order_is_a_record_of_its_size():
    assert {len(orders.encode_order(n)) for n in range(200)} == {orders.VALUE_BYTES}
