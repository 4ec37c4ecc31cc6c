"""What is counted of groups is bounded: their names are chosen by clients."""

from __future__ import annotations

from gateway.telemetry.counts import MAX_GROUPS, GroupCounts


def test_groups_beyond_the_bound_are_counted_together():
    groups = GroupCounts()
    for number in range(MAX_GROUPS + 5):
        groups.observe_rebalance(f"group-{number}", 0.1)
        groups.count_lost(f"group-{number}", 2)
    assert len(groups.rebalance_seconds) == len(groups.lost_partitions) == MAX_GROUPS + 1
    assert groups.lost_partitions[""] == 10
    groups.count_lost("group-0", 1)
    assert groups.lost_partitions["group-0"] == 3, "who was counted by name goes on to be"
