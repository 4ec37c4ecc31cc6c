"""What is counted of groups is bounded: their names are chosen by clients."""

from __future__ import annotations

from gateway.telemetry.tallies import MOST_GROUPS, Groups


def test_groups_beyond_the_bound_are_counted_together():
    groups = Groups()
    for number in range(MOST_GROUPS + 5):
        groups.rebalanced(f"group-{number}", 0.1)
        groups.bereaved(f"group-{number}", 2)
    assert len(groups.seconds) == len(groups.lost) == MOST_GROUPS + 1
    assert groups.lost[""] == 10
    groups.bereaved("group-0", 1)
    assert groups.lost["group-0"] == 3, "who was counted by name goes on to be"
