"""Every attack runs, in a size too small to cost anything, and gives all of its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.attacks import report
from bench.attacks.catalog import ATTACKS
from bench.attacks.measure import AttackResult, Size, measure_attack
from bench.kafka import MockKafka
from gateway.kafka.embedded import EmbeddedKafka

ROOT = Path(__file__).parent.parent.parent
TINY = Size(idle_s=0.3, settle_s=0.1, client_timeout_s=30, max_attack_s=0.3, is_tiny=True)
FACTS = {"date": "today", "kafka": "4"}


@pytest.fixture(scope="module")
def mock() -> Iterator[MockKafka]:
    with EmbeddedKafka() as embedded:
        yield MockKafka(embedded)


@pytest.mark.night
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_runs_and_gives_its_figures(mock: MockKafka, name: str):
    found = await measure_attack(mock, (name, ATTACKS[name]), ROOT, TINY)
    assert found.idle and found.attacked
    assert found.cpu > 0 and found.cpu_idle > 0
    assert found.callback is not None
    assert min(found.memory) > 1 << 20
    assert found.counts, found.notes
    assert len(found.back) == 2, found.notes


def measured(**other: object) -> dict[str, object]:
    found = AttackResult(
        idle=[0.001] * 100, attacked=[0.0015] * 100, callback=0.005, cpu=1.0, begin=160,
        memory=(80 << 20, 100 << 20, 90 << 20), id_length=43, back=["200", "200"],
    )  # fmt: skip
    return {**found.summarize(), **other}


def test_goals_that_were_missed_are_named():
    assert report.find_missed_goals("paths-long", report.summarize([measured()])) == []
    slow = {"p50": 1.0, "p99": 3.0, "max": 4.0, "n": 100}
    for goal, other in {
        "latency": {"attacked": slow},
        "loop": {"callback": 0.03},
        "memory": {"memory": (80 << 20, 300 << 20, 90 << 20)},
        "records": {"lost": 1},
    }.items():
        assert report.find_missed_goals("paths-long", report.summarize([measured(**other)])) == [
            goal
        ]


def test_an_attacker_that_was_given_more_than_its_bounds_is_told():
    counts = {"guesses answered": 3000.0}
    one = report.summarize([measured(counts=counts)])
    assert report.find_missed_goals("guesses-message", one) == ["bounds"]


def test_a_gateway_that_did_not_live_to_tell_has_missed_the_loop():
    assert report.find_missed_goals("paths-long", report.summarize([measured(callback=None)])) == [
        "loop"
    ]


def test_a_page_has_a_line_for_each_attack_and_gateway():
    runs = {("paths-long", name): [measured()] for name in ("before", "after")}
    page = report.render_markdown(FACTS, runs)
    for name in ("before", "after"):
        assert f"| paths-long | {name} | 1.5 | 1 | 1 |" in page
