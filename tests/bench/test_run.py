"""A run is kept as it goes, taken up again, and told in ratios to the raw loop and in goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import __main__ as program
from bench import catalog, goals, report
from bench.results import (
    PACED_SUFFIX,
    PER_CPU,
    ROUNDS_PER_SECOND,
    Cell,
    Run,
    format_number,
    median,
    quantile,
)

ASKED = {"works": ["lat", "sat"], "peers": ["raw-sse", "gateway-sse"]}


def cell(rate: float, case: str = "200 clients") -> Cell:
    found = Cell()
    found.add_row(case, PER_CPU, "1/s", rate, 2 * rate, 3 * rate)
    found.add_note("others took 7% of the server's core")
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path, {"date": "today", "kafka": "4"}, ASKED)
    made.add_cell("lat", "raw-sse", cell(100.0))
    made.add_cell("lat", "gateway-sse", cell(80.0))
    made.save("the page")
    return made


def test_an_interrupted_run_goes_on_with_what_is_left(run: Run, tmp_path: Path):
    again = Run.find_interrupted(tmp_path, ASKED)
    assert again == run
    peers = [peer for peer in catalog.PEERS if peer.name in ASKED["peers"]]
    left = [(work, peer.name) for work, peer in program.list_remaining(run, peers)]
    assert left == [("sat", "gateway-sse"), ("sat", "raw-sse")]


def test_a_finished_run_and_one_of_other_works_are_left_alone(run: Run, tmp_path: Path):
    assert Run.find_interrupted(tmp_path, {**ASKED, "works": ["lat"]}) is None
    run.finished = True
    run.save("the page")
    assert Run.find_interrupted(tmp_path, ASKED) is None


def test_a_loop_that_goes_back_to_back_and_at_a_pace_gives_two_shares(run: Run):
    run.add_cell("broadcast", "gateway-sse", cell(100.0))
    found = cell(400.0)
    found.add_row("200 clients" + PACED_SUFFIX, PER_CPU, "1/s", 250.0)
    run.add_cell("broadcast", "raw-sse", found)
    table = report.render_markdown(run)
    assert "| 200 clients | gateway-sse | 200 | 0.25 | 0.80 |" in table
    assert "| 200 clients | raw-sse | 800 | 1.00 | 3.20 |" in table
    assert "| 200 clients, paced | raw-sse | 250 | 0.31 | 1.00 |" in table
    assert "others took 7%" in table


def test_the_loops_go_at_the_pace_of_the_gateway_on_their_wire(run: Run):
    found = cell(100.0)
    found.add_row("200 clients", ROUNDS_PER_SECOND, "1/s", 90.0, 110.0, 100.0)
    run.add_cell("joined", "gateway-sse", found)
    assert run.get_round_rates("joined", "c-sse") == {"200 clients": 100.0}
    assert run.get_round_rates("joined", "c-ws") == {}
    assert run.get_round_rates("broadcast", "c-sse") == {}


def test_what_failed_is_named_until_it_was_measured(run: Run):
    run.failed["sat raw-sse"] = "TimeoutError('nothing came')"
    assert "- sat raw-sse: failed, TimeoutError('nothing came')" in report.render_markdown(run)
    run.add_cell("sat", "raw-sse", cell(1.0))
    assert "failed" not in report.render_markdown(run)


def test_goals_that_are_missed_are_named_and_stretch_goals_are_marked(run: Run):
    for rate, peer in ((100.0, "raw-sse"), (60.0, "gateway-sse")):
        run.add_cell("broadcast", peer, cell(rate))
    page = report.render_markdown(run)
    assert "1 of 2 goals are met." in page  # at least 0.5 of raw, and not 65,000 a second
    assert "Of 2 stretch goals 0 are reached." in page
    per_cpu = f"gateway-sse | {PER_CPU}"
    assert f"| lat | 200 clients | {per_cpu} | at least 65,000 1/s | 160 | **no** |" in page
    stretch = f"| broadcast | 200 clients | {per_cpu} | at least 1 of raw | 0.6 | stretch |"
    assert stretch in page
    assert list(goals.render_goals(Run(None, {}, ASKED))) == []


def test_a_goal_is_of_a_work_and_a_peer_that_there_are():
    for goal in goals.GOALS:
        if goal.work != "attacks":
            peers = [each for each in catalog.PEERS if catalog.takes_part(each, goal.work)]
            assert any(peer.name.startswith(goal.peer) for peer in peers), goal


def test_quantiles_are_samples_and_a_99th_percentile_needs_a_hundred():
    assert [quantile([4, 1, 3, 2], q) for q in (0.25, 0.5, 0.51, 0.99, 1.0)] == [1, 2, 3, 4, 4]
    assert median([7]) == 7
    found = Cell()
    found.add_times("few", [[0.1] * 99])
    found.add_times("many", [[0.1] * 100])
    assert [(row.case, row.what) for row in found.rows] == [
        ("few", "latency p50"),
        ("few", "latency worst"),
        ("many", "latency p50"),
        ("many", "latency p99"),
    ]


def test_three_digits_are_shown():
    numbers = {0: "0", 0.12345: "0.123", 99.94: "99.9", 123.4: "123", 1234567: "1,230,000"}
    assert {number: format_number(number) for number in numbers} == numbers
