"""A member of a group is replaced, with sizes too small to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.brokers import KafkaCluster

from bench import replacement, replacement_plot, results
from bench.group_reader import Arrival
from bench.kafka import RealKafka
from bench.replacement import Case, Size
from bench.replacement_result import Replacement, read_result

README = Path(__file__).parents[2] / "bench" / "README.md"


@pytest.mark.night
@pytest.mark.parametrize(
    "case",
    [
        Case("consumer", "none"),
        Case("consumer"),
        Case("consumer", ready_s=0.0),
        Case("classic"),
        Case("classic", is_static=True),
    ],
    ids=lambda case: case.name,
)
async def test_every_partition_is_read_before_and_after(kafka: KafkaCluster, case: Case) -> None:
    size = Size(partitions=4, members=2, rate=200.0, quiet_s=0.2, away_s=0.2)
    found = await replacement.measure_case(RealKafka(kafka), size, case)
    assert len(found.silences) == 4
    assert bool(found.hurt) == (found.ended_at is not None) == (case.ending != "none")
    ended_at = found.ended_at or 0.0
    assert all(
        any(p == partition and last > ended_at for p, _, _, last in found.reads)
        for partition in range(4)
    )


def test_records_with_a_pause_or_of_another_member_are_another_bar() -> None:
    times = [(9.5, 1), (9.6, 1), (9.7, 1), (10.5, 1), (10.6, 2)]
    arrivals = [Arrival(at, 0, member) for at, member in times]
    assert list(replacement.merge_arrivals(arrivals, 10.0, 0.1)) == [
        (0, 1, -0.5, -0.3),
        (0, 1, 0.5, 0.5),
        (0, 2, 0.6, 0.6),
    ]


def test_a_silence_beyond_its_goal_is_named() -> None:
    def build(case: Case, silence_s: float, rebalancing_s: float = 0.0) -> Replacement:
        return Replacement(
            case.name,
            0.025,
            hurt=[0],
            rebalancing=[(1.0, 1.0 + rebalancing_s)],
            silences=[silence_s, 0.0],
        )

    kept = [
        build(Case("consumer"), 0.25),
        build(Case("consumer", "killed"), 7.0),
        build(Case("consumer", is_static=True), 2.25),
        build(Case("consumer", ready_s=0.0), 1.0),
    ]
    assert not list(replacement.list_missed_goals(kept))
    missed = [build(Case("classic"), 0.3), build(Case("consumer"), 0.1, 0.2)]
    assert list(replacement.list_missed_goals(missed)) == [
        "cooperative, leaves: silent for 0.300 s, at most 0.25 s wanted",
        "KIP-848, leaves: REBALANCING for 0.200 s, at most 0.1 s wanted",
    ]


def test_the_docs_show_the_result_that_was_kept_last() -> None:
    runs = read_result(max(results.DIRECTORY.glob("*-replacement.json")))
    assert replacement.render_table(runs) in README.read_text()
    drawn = replacement_plot.draw_timelines(
        [replacement.choose_worst(some) for _, some in replacement.group_by_case(runs)]
    )
    assert drawn == replacement.PLOT.read_text()
    assert not list(replacement.list_missed_goals(runs))
