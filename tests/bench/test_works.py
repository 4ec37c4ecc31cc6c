"""Every work runs with every kind of peer, in sizes too small to mean anything."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.brokers import KafkaCluster

from bench import catalog, orders
from bench.__main__ import DEFAULT_WORKS
from bench.exact_client import ExactClient, ExactConnection
from bench.feed import Wire
from bench.kafka import MockKafka, RealKafka
from bench.machine import get_cpu_seconds, measure_cost
from bench.peers import transfer_servers
from bench.peers.by_hand import HandWrittenPeer
from bench.peers.centrifugo import Centrifugo
from bench.peers.gateway_peer import GatewayPeer
from bench.peers.peer import Peer, ServerShape
from bench.peers.raw import RawLoop
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
from bench.works.work import PER_CPU, ROUNDS_PER_SECOND, Cell, note_failure, open_pool
from gateway.kafka.embedded import EmbeddedKafka

SSE, WS = Wire
HOW = ("plain", "compressed")
WRITERS = [RawLoop(SSE), RawLoop(WS), RawLoop(SSE, is_compiled=True), RawLoop(WS, is_compiled=True)]
ONE_OF_EACH = [
    *WRITERS,
    GatewayPeer(SSE),
    GatewayPeer(WS),
    HandWrittenPeer("each"),
    HandWrittenPeer("shared"),
]


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with EmbeddedKafka() as embedded:
        yield MockKafka(embedded)


@pytest.fixture
def real(kafka: KafkaCluster) -> RealKafka:
    """For what is counted by the proxy, which does not read the mock's Metadata."""
    return RealKafka(kafka)


def value(cell: Cell, what: str, case: str = "") -> float:
    (found,) = [row.value for row in cell.rows if row.what == what and case in row.case]
    return found


def runs_here(peer: Peer) -> Peer:
    if lacks := peer.describe_missing():
        pytest.skip(f"{peer.name} needs {lacks}")
    return peer


@pytest.mark.parametrize("peer", ONE_OF_EACH, ids=lambda peer: peer.name)
async def test_a_round_of_broadcast_ends_when_every_client_has_the_record(mock, peer):
    size = broadcast.Size(clients=(3,), repeat_s=0.05, repeats=2)
    cell = await broadcast.run(mock, runs_here(peer), size)
    assert value(cell, PER_CPU, "3 clients") > 0
    assert value(cell, "bytes of a delivery") > 200


@pytest.mark.parametrize(
    "peer", [p for p in catalog.PEERS if p.name.startswith(("nchan", "centrifugo"))],
    ids=lambda peer: peer.name,
)  # fmt: skip
async def test_a_peer_that_is_installed_delivers(mock, peer):
    size = broadcast.Size(clients=(2,), repeat_s=0.05, repeats=1)
    cell = await broadcast.run(mock, runs_here(peer), size)
    assert value(cell, PER_CPU, "2 clients") > 0


async def test_ten_joined_records_are_one_round(mock):
    size = broadcast.Size(clients=(3,), repeat_s=0.05, batch_records=10, repeats=1)
    for peer in (RawLoop(WS), GatewayPeer(WS)):
        cell = await broadcast.run(mock, peer, size)
        assert value(cell, PER_CPU, "3 clients") > 0


async def test_a_bare_loop_goes_once_more_at_a_pace(mock):
    size = broadcast.Size(clients=(3,), repeat_s=0.2, repeats=1)
    cell = await broadcast.run(mock, RawLoop(SSE), size, {"3 clients": 50.0})
    _, paced = [row.value for row in cell.rows if row.what == ROUNDS_PER_SECOND]
    assert 0 < paced <= 50 + 2 / size.repeat_s


def test_only_a_bare_loop_is_paced_and_only_in_rounds():
    assert catalog.get_work("lat", RawLoop(SSE), {}) is catalog.WORKS["lat"]
    assert catalog.get_work("joined", GatewayPeer(SSE), {}) is catalog.WORKS["joined"]
    assert catalog.get_work("joined", RawLoop(SSE), {}) is not catalog.WORKS["joined"]


@pytest.mark.parametrize("wire", [SSE, WS])
async def test_the_raw_loop_writes_what_the_gateway_writes(mock, wire):
    """But for what is in a value and in a token, whose lengths differ by a few characters."""
    raw, ours = [await _one_delivery(mock, peer) for peer in (RawLoop(wire), GatewayPeer(wire))]
    assert _without_numbers(raw) == _without_numbers(ours)
    assert abs(len(raw) - len(ours)) < 30


def _without_numbers(delivery: bytes) -> bytes:
    for numbers in (
        rb"(?<=^)[\da-f]{3}(?=\r\n)",  # of a chunk
        rb"(?<=^\x81\x7e)..",  # of a message
        rb'(?<=id: )\S+|(?<="position":")[^"]+',
        rb'(?<="at":)\d+,"n":\d+,"pad":"x+',
    ):
        delivery = re.sub(numbers, b"*", delivery, flags=re.DOTALL)
    return delivery


async def _one_delivery(mock: MockKafka, peer: Peer) -> bytes:
    async with peer.serve(mock, ServerShape()) as served, open_pool(served, peer, 1) as crowd:
        with socket.create_connection(("127.0.0.1", served.port), 30) as client:
            client.sendall(served.build_request(1, b""))
            while b"\r\n\r\n" not in (head := client.recv(1 << 16)):
                pass
            if peer.greeting:
                while peer.greeting not in head:
                    head += client.recv(1 << 16)
            served.feed.send()
            assert await crowd.wait_for_records(crowd.record_count + 1)
            data = b""
            while b'"~"' not in data or not data.endswith((b"\r\n", b"}")):
                data += client.recv(1 << 16)
        return data


async def test_at_a_pace_every_delivery_is_counted_and_some_are_timed(mock):
    size = pace.Size(clients=3, rate=200, seconds=0.3, timed_every=2, repeats=2)
    cell = await pace.run(mock, GatewayPeer(SSE), size)
    assert value(cell, "delivered in time") == 100
    assert value(cell, "latency p50") > 0


@pytest.mark.parametrize(
    "peer",
    [RawLoop(SSE), GatewayPeer(SSE), GatewayPeer(WS), HandWrittenPeer("shared")],
    ids=lambda peer: peer.name,
)
async def test_with_keys_a_record_is_one_delivery(mock, peer):
    size = pace.Size(clients=5, has_own_keys=True, rate=200, seconds=0.2)
    cell = await pace.run(mock, peer, size)
    assert value(cell, "delivered in time") == 100


@pytest.mark.parametrize("has_own_keys", [False, True])
async def test_two_workers_deliver_each_record_once(mock, has_own_keys):
    size = pace.Size(clients=6, has_own_keys=has_own_keys, rate=100, seconds=0.3, workers=2)
    cell = await pace.run(mock, GatewayPeer(SSE), size)
    assert value(cell, "delivered in time", ", 2 workers") == 100


@pytest.mark.parametrize("wire", [SSE, WS])
async def test_nothing_is_lost_by_a_cut_or_a_restart_and_kafka_is_read_through_a_proxy(real, wire):
    cases = (
        catchup.Case("cut", 3, 40, repeats=2),
        catchup.Case("restart", 3, 40, restarts_server=True),
    )
    cell = await catchup.run(real, GatewayPeer(wire), catchup.Size(cases=cases, rate=50))
    for case in ("cut", "restart"):
        assert [value(cell, what, case) for what in ("lost", "twice", "damaged")] == [0, 0, 0]
        assert value(cell, "whole and live, the last", case) > 0
    assert value(cell, "fetches", "restart") > 0


async def test_what_a_server_forgets_is_told_as_lost(mock, monkeypatch):
    monkeypatch.setattr(catchup, "STALL_TIMEOUT_S", 0.3)
    cases = (catchup.Case("cut", 2, 30), catchup.Case("restart", 2, 30, restarts_server=True))
    cell = await catchup.run(
        mock, HandWrittenPeer("shared"), catchup.Size(cases=cases, has_proxy=False)
    )
    assert value(cell, "lost", "cut") > 30, "of 60; on a busy machine it is late, and has the last"
    assert any("restart" in note for note in cell.notes)


async def test_who_comes_back_too_late_is_told_and_not_waited_for(mock, monkeypatch):
    monkeypatch.setattr(catchup, "CATCH_UP_TIMEOUT_S", -1.0)
    cases = (catchup.Case("cut", 2, 30),)
    cell = await catchup.run(mock, GatewayPeer(SSE), catchup.Size(cases=cases, has_proxy=False))
    assert value(cell, "CPU", "cut") > 0
    assert any("were not whole and live" in note for note in cell.notes)


async def test_a_storm_and_idle_clients_are_counted_by_the_client(mock):
    cell = await storm.run(mock, GatewayPeer(SSE), storm.Size(clients=20, repeats=1, settle_s=0.1))
    assert value(cell, "last first block", "20 clients") > 0
    cell = await idle.run(
        mock, GatewayPeer(WS), idle.Size(clients=20, first_clients=5, settle_s=0.2)
    )
    assert value(cell, "PSS of a client", "20 clients") > -1000


async def test_whoever_joins_a_stream_gets_a_first_record(mock):
    cell = await first.run(mock, GatewayPeer(SSE), first.Size(join_count=2, rate=200, repeats=2))
    assert value(cell, "latency p50", "200/s") > 0


async def test_over_many_partitions_not_every_record_has_an_id(mock):
    size = partitions.Size(partitions=(12, 600), clients=2, round_records=300, rounds=2, repeats=1)
    cell = await partitions.run(mock, GatewayPeer(SSE), size)
    for case in ("12 partitions", "600 partitions"):
        assert value(cell, "record bytes of a CPU second", case) > 0
    assert value(cell, "of 12 partitions", "600 partitions") > 0
    assert value(cell, "ids of 100 records", "12 partitions") == 100
    assert 0 < value(cell, "ids of 100 records", "600 partitions") < 100


@pytest.mark.parametrize("wire", [SSE, WS])
async def test_a_delivery_is_measured_plain_and_compressed(mock, wire):
    size = deflate.Size(clients=3, repeat_s=0.2, batch_sizes=(5,), repeats=2)
    cell = await deflate.run(mock, GatewayPeer(wire), size)
    plain, squeezed = (value(cell, "bytes of a delivery", f"{how}, 5") for how in HOW)
    assert 0 < squeezed < plain
    assert value(cell, "CPU of a delivery", "compressed, 5") > 0
    if wire is SSE:
        assert 0 < value(cell, "bytes of a delivery", "dictionary, 5") < squeezed
    assert not any("damaged" in note or "failed" in note for note in cell.notes)


def test_a_case_that_fails_is_told_and_the_others_are_kept():
    cell = Cell()
    with note_failure(cell, "plain"):
        raise ConnectionError("the server closed")
    with note_failure(cell, "compressed"):
        cell.add_row("compressed", PER_CPU, "1/s", 1.0)
    assert cell.notes == ["plain: failed, ConnectionError('the server closed')"]
    assert value(cell, PER_CPU) == 1.0


async def test_a_reader_whose_server_closes_says_so():
    reader = ExactClient(SSE)
    ExactConnection(reader, b"").connection_lost(None)
    with pytest.raises(ConnectionError, match="the server closed"):
        reader.has_received(1)
    assert reader.has_received(0)


async def test_the_longest_callback_is_found_by_a_launcher(mock):
    size = loop.Size(clients=5, rate=50, seconds=0.3, brief_clients=2)
    cell = await loop.run(mock, GatewayPeer(SSE), size)
    assert value(cell, "longest callback, wall") > 0


@pytest.mark.parametrize("wire", [SSE, WS])
async def test_a_crowd_comes_back_and_has_every_record_once(mock, wire):
    size = crowd.Size(clients=8, first_clients=2, worker_counts=(1, 2), records=1)
    cell = await crowd.run(mock, GatewayPeer(wire), size)
    for case in ("8 clients, 1 worker", "8 clients, 2 workers"):
        assert value(cell, "lost", case) == value(cell, "twice", case) == 0
        assert value(cell, "all back", case) > value(cell, "drained and started again", case)
        assert value(cell, "last delivery", case) > 0
    assert not cell.notes or "limit" in cell.notes[0]


async def test_more_clients_than_are_admitted_come_while_records_are_sent(mock):
    size = overload.Size(
        clients=10, spare_clients=1, arriving_clients=30, calm_rate=50, calm_s=0.4, load_rate=200,
        load_s=0.6, timed_every=1,
    )  # fmt: skip
    cell = await overload.run(mock, GatewayPeer(SSE), size)
    assert value(cell, "lost") == value(cell, "twice") == value(cell, "without an answer") == 0
    assert value(cell, "refused") > 0 == value(cell, "refused without Retry-After")
    assert value(cell, "admitted") + value(cell, "refused") == 30
    assert value(cell, "normal again") < overload.RECOVERY_TIMEOUT_S
    assert any("each second of load" in note for note in cell.notes)


async def test_clients_without_sockets_are_measured_at_each_count(mock):
    size = million.Size(
        counts=(10, 30), records=1, idle_s=0.1, resuming_clients=20, missed_records=500,
        live_rate=100,
    )  # fmt: skip
    cell = await million.run(mock, GatewayPeer(SSE), size)
    assert [row.case for row in cell.rows if row.what == "all back" and row.value > 0] == [
        "10 clients", "30 clients", "10 clients, own keys", "30 clients, own keys",
    ]  # fmt: skip
    assert value(cell, "all at the head") > 0 == value(cell, "lost")


def test_works_of_minutes_are_done_only_where_they_are_named():
    assert set(catalog.WORKS) == {*DEFAULT_WORKS, "crowd", "million", "overload"}


@pytest.mark.parametrize("wire", [SSE, WS])
async def test_with_telemetry_and_without_are_worked_in_turns(mock, wire):
    cases = (telemetry.Case(3, 100), telemetry.Case(4, 100, has_own_keys=True))
    size = telemetry.Size(cases=cases, turn_s=0.3, turn_count=2, scraped_clients=5, scrape_count=2)
    cell = await telemetry.run(mock, GatewayPeer(wire), size)
    for case in ("3 x 100/s", "4 own keys x 100/s"):
        (share,) = [
            r.value for r in cell.rows if r.what == telemetry.UNCOUNTED_SHARE and r.case == case
        ]
        assert share > 0
        for how in (telemetry.WITH_TELEMETRY, telemetry.WITHOUT_TELEMETRY):
            assert value(cell, PER_CPU, f"{case}, {how}") > 0
    assert value(cell, "a scrape", "5 clients") > 0


@pytest.mark.parametrize("work", ["produce", "consume"])
async def test_a_sidecar_a_library_and_a_bridge_by_hand_carry_all_records(real, work):
    size = transfer.Size(
        work,
        records=60,
        bridge_records=60,
        clients=2,
        batch_records=10,
        partitions=4,
        rounds=1,
        formats=("json",),
    )
    cell = await transfer.run(real, None, size)
    for name in (transfer_servers.LIBRARY, "sidecar, json", transfer_servers.BRIDGE):
        assert value(cell, transfer.RECORDS_PER_CPU, name) > 0
        assert value(cell, transfer.LIBRARY_SHARE, name) > 0


def test_streams_and_records_have_works_of_their_own():
    carrier, gateway = transfer_servers.TransferPeer(), GatewayPeer(SSE)
    assert catalog.takes_part(carrier, "sidecar-produce")
    assert not catalog.takes_part(carrier, "lat")
    assert catalog.takes_part(gateway, "lat")
    assert not catalog.takes_part(gateway, "sidecar-produce")


def test_an_order_is_a_record_of_its_size():
    assert {len(orders.encode_order(n)) for n in range(200)} == {orders.VALUE_BYTES}


def test_a_compiled_loop_is_left_out_where_nothing_compiles(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "cc" in RawLoop(SSE, is_compiled=True).describe_missing()
    assert "centrifugo" in Centrifugo(SSE).describe_missing()
    assert not RawLoop(SSE).describe_missing()


def test_what_a_server_uses_is_told_with_its_children():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        with measure_cost(process.pid) as spent:
            while get_cpu_seconds(process.pid) < 1.0:
                time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert spent.cpu_s > 0.8 and spent.wall_s > 0
