from __future__ import annotations

import asyncio
from types import SimpleNamespace

from support.key_readers import TP, build_index, scan_keys
from support.waiting import TurnCounter, wait_until

from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import Record
from gateway.hub.reads.key_indexes import ENTRIES_PER_CLOCK_CHECK, KeyIndexBuilder

KEY_COUNT = 100


def build_log(entries: int) -> PartitionLog:
    log = PartitionLog(TP, 1 << 30, 1e9)
    log.open(0, 0)
    for offset in range(entries):
        log.append(Record(TP, offset, 0, 0, b"%d" % (offset % KEY_COUNT), b"v"), 0.0)
    return log


def is_indexed(log: PartitionLog) -> bool:
    return sum(1 for _ in log.iter_key_entries(0, {b"3"})) < len(log)


async def test_other_tasks_run_between_the_slices_in_which_an_index_is_built():
    """An index of 500,000 entries was built at once, and held everybody up for 0.2 s."""
    log = build_log(100 * ENTRIES_PER_CLOCK_CHECK)
    scan_keys(log)
    with TurnCounter() as turns:
        await KeyIndexBuilder({}, lambda size: None).build([log])
    assert turns.count >= 3
    assert is_indexed(log)


async def test_the_memory_of_an_index_is_reported_as_it_grows():
    log, grown = build_log(20_000), list[int]()
    scan_keys(log)
    bytes_before = log.bytes
    await KeyIndexBuilder({}, grown.append).build([log])
    assert sum(grown) == log.bytes - bytes_before > 0


async def test_logs_are_looked_at_again_and_again_and_an_error_ends_nothing():
    log, reports = build_log(20_000), list[int]()

    def fail_at_first(size: int) -> None:
        reports.append(size)
        if len(reports) == 1:
            raise RuntimeError("the first time")

    reads = {TP: SimpleNamespace(log=log)}
    building = asyncio.create_task(KeyIndexBuilder(reads, fail_at_first).build_forever())
    scan_keys(log)
    await wait_until(lambda: is_indexed(log))
    building.cancel()
    assert not log.build_key_index(1)
    assert build_index(log) == 1
