"""The figures of jobs stand beside goals. None is measured here: that takes Spark."""

from __future__ import annotations

from bench import results
from bench.figure import Figure
from bench.pipeline import __main__ as bench
from bench.pipeline import goals

MACHINE = {"date": "2026-03-01T12:00:00+00:00", "cores": 2}


def test_every_goal_is_of_a_measurement():
    assert {goal.name for goal in goals.GOALS} <= set(bench.MEASUREMENTS)


def test_the_table_says_beside_a_figure_whether_its_goal_is_met():
    measured = {
        "latency": [
            Figure("real-time, stateless, received, p99", 93.0, "ms", 25_000),
            Figure("real-time, stateless, received, p50", 2.0, "ms", 25_000),
        ],
        "join": [Figure("join inner, 10 orders and 9 payments, warm", 31e3, "records/s", 19)],
    }
    lines = results.render_table(MACHINE, measured, goals.judge_figure).splitlines()
    assert lines[4:] == [
        "| | measured | value | unit | n | goal |",
        "|---|---|---:|---|---:|---|",
        "| latency | real-time, stateless, received, p99 | 93 | ms | 25000 | at most 50: **no** |",
        "|  | real-time, stateless, received, p50 | 2 | ms | 25000 |  |",
        "| join | join inner, 10 orders and 9 payments, warm | 31,000 | records/s | 19 "
        "| at least 30,000: met |",
    ]


def test_a_goal_without_its_figure_is_told():
    assert [*goals.find_missing("join", [Figure("one key", 1.0, "s")])] == ["join "]
    assert not [*goals.find_missing("join", [Figure("join left, warm", 1.0, "records/s")])]
