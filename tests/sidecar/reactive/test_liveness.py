"""Whatever happens to a group: once all is well again, every record is delivered and committed."""

from __future__ import annotations

import logging
import os

import pytest
from support.simulated_groups import GroupWorld
from support.virtual_time import run_virtually

HISTORIES = int(os.environ.get("GATEWAY_GROUP_HISTORIES", "40"))
EVENTS = [
    "produce", "produce", "change_back_end", "change_kafka", "start", "stop", "kill", "expire",
    "pause", "seek", "delete_records", "add_partition", "recreate",
]  # fmt: skip


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_every_record_is_delivered_once_all_is_well_again(
    protocol: str, caplog: pytest.LogCaptureFixture
):
    """A lane that was full when its partitions went was taken for full for ever, a commit that
    nobody could make any more was waited for, and one that was tried again was made for the
    successor of its topic."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(HISTORIES):
        world = GroupWorld(seed, classic=protocol == "classic")
        run_virtually(world.run(EVENTS, 25))
        assert not world.oracle.faults, (seed, world.oracle.faults, world.log)
