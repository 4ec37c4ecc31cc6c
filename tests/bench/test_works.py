"""Every work runs, with sizes too small to mean anything."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import KafkaCluster

from bench import catalog, orders
from bench.__main__ import DEFAULT_WORKS
from bench.feed import Wire
from bench.kafka import MockKafka, RealKafka
from bench.peers.by_hand import HandWrittenPeer
from bench.peers.gateway_peer import GatewayPeer
from bench.peers.peer import Peer, ServerShape
from bench.peers.raw import RawLoop
from bench.peers.transfer_servers import TransferPeer
from bench.works import (
    broadcast,
    catchup,
    crowd,
    deflate,
    first,
    idle,
    loop,
    million,
    overload,
    pace,
    partitions,
    storm,
    telemetry,
    transfer,
)
from bench.works.work import Cell, note_failure, open_pool
from gateway.kafka.embedded import EmbeddedKafka

SSE, WS = Wire
BY_HAND = HandWrittenPeer("shared")
PEERS = [
    *(RawLoop(wire, is_compiled=is_compiled) for wire in Wire for is_compiled in (False, True)),
    *(GatewayPeer(wire) for wire in Wire),
    HandWrittenPeer("each"),
    *(peer for peer in catalog.PEERS if peer.name.startswith(("nchan", "centrifugo"))),
]
WORKS: dict[str, tuple[Any, Any]] = {
    "broadcast": (broadcast, broadcast.Size(clients=(3,), repeat_s=0.05, batch_records=10)),
    "keys": (pace, pace.Size(clients=5, has_own_keys=True, rate=200, seconds=0.2)),
    "two workers": (pace, pace.Size(clients=6, rate=100, seconds=0.3, workers=2)),
    "storm": (storm, storm.Size(clients=20, repeats=1, settle_s=0.1)),
    "idle": (idle, idle.Size(clients=20, first_clients=5, settle_s=0.2)),
    "first": (first, first.Size(join_count=2, rate=200, repeats=2)),
    "partitions": (
        partitions,
        partitions.Size(partitions=(12, 600), clients=2, round_records=300, rounds=2, repeats=1),
    ),
    "deflate": (deflate, deflate.Size(clients=3, repeat_s=0.2, batch_sizes=(5,), repeats=2)),
    "loop": (loop, loop.Size(clients=5, rate=50, seconds=0.3, brief_clients=2)),
    "crowd": (crowd, crowd.Size(clients=8, first_clients=2, worker_counts=(1, 2), records=1)),
    "overload": (
        overload,
        overload.Size(
            clients=10, spare_clients=1, arriving_clients=30, calm_rate=50, calm_s=0.4,
            load_rate=200, load_s=0.6, timed_every=1,
        ),
    ),
    "million": (
        million,
        million.Size(
            counts=(10, 30), records=1, idle_s=0.1, resuming_clients=20, missed_records=500,
            live_rate=100,
        ),
    ),
    "telemetry": (
        telemetry,
        telemetry.Size(
            cases=(telemetry.Case(3, 100), telemetry.Case(4, 100, has_own_keys=True)),
            turn_s=0.3, turn_count=2, scraped_clients=5, scrape_count=2,
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with EmbeddedKafka() as embedded:
        yield MockKafka(embedded)


@pytest.fixture
def real(kafka: KafkaCluster) -> RealKafka:
    """For what is counted by the proxy, which does not read the mock's Metadata."""
    return RealKafka(kafka)


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
async def test_a_work_gives_its_figures_and_loses_nothing(mock: MockKafka, name: str, wire: Wire):
    work, size = WORKS[name]
    check_cell(await work.run(mock, GatewayPeer(wire), size))


@pytest.mark.night
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
async def test_a_peer_that_is_installed_delivers(mock: MockKafka, peer: Peer):
    if missing := peer.describe_missing():
        pytest.skip(f"{peer.name} needs {missing}")
    size = broadcast.Size(clients=(3,), repeat_s=0.05, repeats=2)
    check_cell(await broadcast.run(mock, peer, size))


@pytest.mark.night
@pytest.mark.parametrize("wire", Wire, ids=str)
async def test_the_raw_loop_writes_what_the_gateway_writes(mock: MockKafka, wire: Wire):
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


async def read_delivery(mock: MockKafka, peer: Peer) -> bytes:
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
async def test_nothing_is_lost_by_a_cut_or_a_restart(real: RealKafka, wire: Wire):
    cases = (
        catchup.Case("cut", 3, 40, repeats=2),
        catchup.Case("restart", 3, 40, restarts_server=True),
    )
    cell = await catchup.run(real, GatewayPeer(wire), catchup.Size(cases=cases, rate=50))
    check_cell(cell)
    assert get_value(cell, "fetches", "restart") > 0


@pytest.mark.night
async def test_what_a_server_forgets_is_counted_as_lost(mock: MockKafka):
    size = catchup.Size(cases=(catchup.Case("cut", 2, 30),), has_proxy=False, stall_timeout_s=0.3)
    cell = await catchup.run(mock, BY_HAND, size)
    assert get_value(cell, "lost", "cut") > 30, "of 60; on a busy machine it has the last"


@pytest.mark.night
@pytest.mark.parametrize("work", ["produce", "consume"])
async def test_a_sidecar_a_library_and_a_bridge_by_hand_carry_all_records(real, work):
    size = transfer.Size(
        work, records=60, bridge_records=60, clients=2, batch_records=10, partitions=4, rounds=1,
        formats=("json",),
    )  # fmt: skip
    check_cell(await transfer.run(real, TransferPeer(), size))


def test_a_case_that_fails_is_noted_and_the_others_are_kept():
    cell = Cell()
    with note_failure(cell, "plain"):
        raise ConnectionError("the server closed")
    with note_failure(cell, "compressed"):
        cell.add_row("compressed", "rounds", "1/s", 1.0)
    assert cell.notes == ["plain: failed, ConnectionError('the server closed')"]
    assert get_value(cell, "rounds") == 1.0


def test_only_a_bare_loop_is_paced_and_only_in_rounds():
    assert catalog.get_work("lat", RawLoop(SSE), {}) is catalog.WORKS["lat"]
    assert catalog.get_work("joined", GatewayPeer(SSE), {}) is catalog.WORKS["joined"]
    assert catalog.get_work("joined", RawLoop(SSE), {}) is not catalog.WORKS["joined"]


def test_works_of_minutes_are_done_only_where_they_are_named():
    named = {"crowd", "million", "overload", *catalog.ALONE}
    assert set(catalog.WORKS) == {*DEFAULT_WORKS, *named}


def test_an_order_is_a_record_of_its_size():
    assert {len(orders.encode_order(n)) for n in range(200)} == {orders.VALUE_BYTES}
