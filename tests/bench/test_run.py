"""A run is kept as it goes, taken up again, and told in ratios to the raw loop."""

from __future__ import annotations

import csv
import importlib.util
from io import StringIO
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import catalog, goals, plots, report
from bench.client_pool import ClientPool, CountingClient
from bench.exact_client import ExactClient, ExactConnection
from bench.feed import Wire
from bench.journal import Run
from bench.records import build_value
from bench.works.work import PACED_SUFFIX, PER_CPU, ROUNDS_PER_SECOND, Cell
from gateway.wire.websocket import encode_text

ASKED = {"works": ["lat", "sat"], "peers": ["raw-sse", "gateway-sse"]}


def cell(rate: float) -> Cell:
    found = Cell()
    found.add_row("200 clients", PER_CPU, "1/s", rate, 2 * rate, 3 * rate)
    found.add_note("others took 7% of the server's core")
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path, {"date": "today", "kafka": "4"}, ASKED)
    made.add_cell("lat", "raw-sse", cell(100.0))
    made.add_cell("lat", "gateway-sse", cell(80.0))
    return made


def test_an_interrupted_run_goes_on_with_what_is_left(run: Run, tmp_path: Path):
    again = Run.find_interrupted(tmp_path, ASKED)
    assert again is not None
    assert again.cells == run.cells
    peers = [peer for peer in catalog.PEERS if peer.name in ASKED["peers"]]
    left = [(work, peer.name) for work, peer in program.list_remaining(again, peers)]
    assert left == [("sat", "gateway-sse"), ("sat", "raw-sse")]


def test_a_line_cut_off_with_the_machine_is_measured_again(run: Run, tmp_path: Path):
    assert run.folder is not None
    cells = run.folder / "cells.jsonl"
    cells.write_text(cells.read_text()[:-20])
    again = Run.find_interrupted(tmp_path, ASKED)
    assert again is not None
    assert list(again.cells) == [("lat", "raw-sse")]
    again.add_cell("lat", "gateway-sse", cell(90.0))
    assert Run.load(run.folder).cells == again.cells


def test_a_finished_run_and_one_of_other_works_are_left_alone(run: Run, tmp_path: Path):
    assert Run.find_interrupted(tmp_path, {**ASKED, "works": ["lat"]}) is None
    run.finished = True
    run.save()
    assert Run.find_interrupted(tmp_path, ASKED) is None


def test_rates_are_told_as_shares_of_the_raw_loop_on_the_same_wire(run: Run):
    rows = list(csv.DictReader(StringIO(report.render_csv(run))))
    assert [(row["peer"], row["of raw"]) for row in rows] == [
        ("raw-sse", "1.000"),
        ("gateway-sse", "0.800"),
    ]
    assert rows[0]["value"] == "200"
    assert (rows[0]["low"], rows[0]["high"], rows[0]["n"]) == ("100", "300", "3")
    table = report.render_markdown(run)
    assert "| 200 clients | gateway-sse | 160 | 0.80 |" in table
    assert "others took 7%" in table


def test_a_loop_that_goes_back_to_back_and_at_a_pace_gives_two_shares(run: Run):
    run.add_cell("broadcast", "gateway-sse", cell(100.0))
    found = cell(400.0)
    found.add_row("200 clients" + PACED_SUFFIX, PER_CPU, "1/s", 250.0)
    run.add_cell("broadcast", "raw-sse", found)
    table = report.render_markdown(run)
    assert "| 200 clients | gateway-sse | 200 | 0.25 | 0.80 |" in table
    assert "| 200 clients | raw-sse | 800 | 1.00 | 3.20 |" in table
    assert "| 200 clients, paced | raw-sse | 250 | 0.31 | 1.00 |" in table
    (goal,) = [line for line in goals.render_goals(run) if "broadcast" in line]
    assert "| 0.25 (0.8 of raw, paced) | **no** |" in goal


def test_the_loops_go_at_the_pace_of_the_gateway_on_their_wire(run: Run):
    found = cell(100.0)
    found.add_row("200 clients", ROUNDS_PER_SECOND, "1/s", 90.0, 110.0, 100.0)
    run.add_cell("joined", "gateway-sse", found)
    assert run.get_round_rates("joined", "c-sse") == {"200 clients": 100.0}
    assert run.get_round_rates("joined", "c-ws") == {}
    assert run.get_round_rates("broadcast", "c-sse") == {}


def test_what_failed_is_named_until_it_was_measured(run: Run):
    run.failed["sat raw-sse"] = "TimeoutError('nothing came')"
    run.save()
    assert run.folder is not None
    again = Run.load(run.folder)
    assert "- sat raw-sse: failed, TimeoutError('nothing came')" in report.render_markdown(again)
    again.add_cell("sat", "raw-sse", cell(1.0))
    assert "failed" not in report.render_markdown(again)


def test_goals_are_judged_of_what_was_measured(run: Run):
    found = Cell()
    found.add_row("200 clients", PER_CPU, "1/s", 50.0)
    run.add_cell("broadcast", "raw-sse", found)
    run.add_cell("broadcast", "gateway-sse", found)
    lines = [line for line in goals.render_goals(run) if "gateway" in line]
    assert [line.rsplit("|", 4)[1:-1] for line in lines] == [
        [" at least 1 of raw ", " 1 ", " met "],
        [" at least 180,000 1/s ", " 160 ", " **no** "],
    ]
    assert "## Goals" in report.render_markdown(run)


@pytest.mark.night
def test_plots_are_drawn_of_what_there_is(run: Run, tmp_path: Path):
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed: pip install -e '.[bench]'")
    for clients in ("10", "1,000"):
        found = Cell()
        found.add_row(f"{clients} clients", PER_CPU, "1/s", 5.0)
        run.cells["clients", f"gateway-{'sse' if clients == '10' else 'ws'}"] = found
    loop = cell(400.0)
    loop.add_row("200 clients" + PACED_SUFFIX, PER_CPU, "1/s", 250.0)
    run.add_cell("broadcast", "raw-sse", loop)
    made = plots.draw_plots(run, tmp_path)
    assert [path.name for path in made] == ["rates.png", "clients.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


async def test_a_mark_that_is_cut_in_two_is_counted_once():
    stream = b"data: %b\nid: A\n\n" % build_value(1) + b"data: %b\nid: B\n\n" % build_value(2)
    for at in range(1, len(stream)):
        crowd = ClientPool()
        client = CountingClient(crowd, b"", b"", False)
        client.opening_bytes = None
        client.data_received(stream[:at])
        client.data_received(stream[at:])
        assert crowd.record_count == 2, at


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def received(wire: Wire, head: bytes, stream: bytes, piece: int) -> ExactClient:
    client = ExactClient(wire)
    client.expect_records(0, 2)
    connection = ExactConnection(client, b"")
    whole = head + stream
    for at in range(0, len(whole), piece):
        connection.data_received(whole[at : at + piece])
    return client


HTTP = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 100, 10_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_events_are_read_whole_however_they_are_cut(piece: int, end: bytes):
    events = [b"data: %b\nid: t%d\n\n" % (build_value(n), n) for n in (0, 1, 1)]
    events.insert(1, b":\n\n")
    stream = b"".join(events).replace(b"\n", end)
    client = received(Wire.SSE, HTTP, chunk(stream[:99]) + chunk(stream[99:]), piece)
    assert (client.record_count, client.duplicate_count, client.damaged_count, client.token) == (
        3,
        1,
        0,
        b"t1",
    )
    assert client.count_lost(0, 3) == 1


@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_messages_are_read_whole_however_they_are_cut(piece: int):
    head = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
    told = b'{"type":"records","records":[%b,%b],"position":"tok-2"}' % (
        build_value(0),
        build_value(2),
    )
    client = received(Wire.WS, head, encode_text(told) + encode_text(b'{"type":"position"}'), piece)
    assert (client.record_count, client.token, client.count_lost(0, 3)) == (2, b"tok-2", 1)


async def test_a_value_that_is_not_whole_is_damaged():
    broken = b"data: %b\nid: t\n\n" % build_value(0).replace(b'"pad":"x', b'"pad":"!')
    assert received(Wire.SSE, HTTP, chunk(broken), 50).damaged_count == 1


async def test_a_client_is_live_with_a_record_made_after_what_it_missed():
    client = ExactClient(Wire.SSE)
    client.expect_records(0, 2)
    client.record_numbers([b"0", b"1"])
    assert not client.completed_at
    client.record_numbers([b"2"])
    assert client.completed_at
