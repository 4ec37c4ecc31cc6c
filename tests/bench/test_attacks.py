"""Every attack runs, in a size too small to cost anything, and gives all of its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report
from bench.attacks.catalog import ATTACKS
from bench.attacks.measure import AttackResult, Size, add_results, measure_attack
from bench.goals import CALLBACK, judge
from bench.kafka import Kafka
from bench.results import Cell, Run

ROOT = Path(__file__).parent.parent.parent
TINY = Size(idle_s=0.3, settle_s=0.1, client_timeout_s=30, max_attack_s=0.3, is_tiny=True)


@pytest.mark.night
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_runs_and_gives_its_figures(mock: Kafka, name: str):
    found = await measure_attack(mock, (name, ATTACKS[name]), ROOT, TINY)
    assert found.idle and found.attacked
    assert found.cpu > 0
    assert found.callback is not None
    assert min(found.memory) > 1 << 20
    assert found.counts, found.notes
    assert len(found.back) == 2, found.notes


def judge_attack(name: str = "paths-long", **other: object) -> set[str]:
    """The goals that an attack with such figures misses."""
    figures: dict[str, object] = {
        "idle": [0.001] * 100, "attacked": [0.0015] * 100, "callback": 0.005, "cpu": 1.0,
        "begin": 160, "memory": (80 << 20, 100 << 20, 90 << 20), "id_length": 43,
        "back": ["200", "200"], **other,
    }  # fmt: skip
    run, cell = Run(None, {"date": "today"}, {}), Cell()
    add_results(cell, name, ATTACKS[name], [AttackResult(**figures)])  # type: ignore[arg-type]
    run.add_cell("attacks", "before", cell)
    assert f"| {name} | before | 1.5 | 1 |" in report.render_markdown(run) or "attacked" in other
    return {miss.what for miss in judge(run)[0]}


def test_goals_that_were_missed_are_named():
    assert judge_attack() == set()
    for goals, other in (
        ({"p99", "p99 to idle"}, {"attacked": [0.08] * 100}),
        ({"p99 to idle"}, {"attacked": [0.003] * 100}),
        ({CALLBACK}, {"callback": 0.03}),
        ({"MiB beyond"}, {"memory": (80 << 20, 300 << 20, 90 << 20)}),
        ({"lost"}, {"lost": 1}),
        ({"not let in"}, {"back": ["200", "503"]}),
    ):
        assert judge_attack(**other) == goals


def test_an_attacker_that_was_given_more_than_its_bounds_is_told():
    assert judge_attack("guesses-message", counts={"guesses answered": 3000.0}) == {
        "beyond its limits"
    }


def test_a_gateway_that_did_not_live_to_tell_has_missed_the_loop():
    assert judge_attack(callback=None) == {CALLBACK}
