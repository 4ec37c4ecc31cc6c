"""A lane at work among doubles of what it works with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.until import until

from gateway.core.delivery.batch import Dead, Rules, Settled
from gateway.core.delivery.verdict import Answered, Away, Item, Suspect, Verdict
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RegistryUnavailable
from gateway.sidecar.reactive.points import Points
from gateway.sidecar.reactive.runner import Runner, Works
from gateway.sidecar.reactive.written import Written

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Around:
    """Back end, writer and dead letters at once. says, raises, hold: of the back end."""

    def __init__(self) -> None:
        self.says: Verdict | None = None
        self.raises: Exception | None = None
        self.unreadable: dict[int, str] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.ill = ""
        self.sent: list[list[int]] = []
        self.cancelled = 0
        self.dead: list[Dead] = []
        self.settled: list[Settled] = []
        self.committed: dict[TopicPartition, int] = {}

    async def write(self, records: Any) -> Any:
        if records and isinstance(records[0], Dead):
            self.dead += records
            return [], ""
        if self.raises is not None:
            raise self.raises
        sent = [each for index, each in enumerate(records) if index not in self.unreadable]
        return Written(b"[]", sent, self.unreadable)

    async def post(
        self, body: bytes, sent: Sequence[Record], headers: Mapping[str, str]
    ) -> Verdict:
        self.sent.append([each.offset for each in sent])
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.says or Answered([Item(True)] * len(sent))

    async def unwell(self) -> str:
        return self.ill

    async def commit(self, points: Mapping[TopicPartition, int]) -> None:
        self.committed |= points


@asynccontextmanager
async def working(around: Around, **rules: Any) -> AsyncIterator[Runner]:
    points = Points("g", around.commit)
    double: Any = around
    works = Works("g", double, double, double, points, around.settled.append)
    made = Runner(Rules(first=0.01, ceiling=0.02, **rules), works, lambda runner: None)
    running = [asyncio.create_task(made.run()), asyncio.create_task(points.run())]
    try:
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def give(runner: Runner, *records: Record) -> None:
    runner.tps |= {each.tp for each in records}
    runner.lane.put(records)
    runner.wake()


def record(tp: TopicPartition, offset: int) -> Record:
    return Record(tp, offset, 0, 0, b"k", b"v")


async def test_while_schemas_cannot_be_asked_for_or_the_sidecar_itself_fails_a_batch_is_kept():
    around = Around()
    async with working(around, retries=0) as runner:
        for why in (RegistryUnavailable("the registry is away", retry_after=0.01), KeyError("x")):
            around.raises = why
            give(runner, record(A, 3))
            await until(lambda: runner.lane.trouble)
            assert not around.settled
            around.raises = None
            await until(lambda: around.settled)
            around.settled.clear()
    assert (around.dead, around.committed) == ([], {A: 4})


async def test_records_that_cannot_be_read_are_not_sent_and_the_others_are():
    around = Around()
    around.unreadable = {1: "not JSON"}
    async with working(around) as runner:
        give(runner, *(record(A, offset) for offset in range(3)))
        await until(lambda: around.committed == {A: 3})
        assert around.sent == [[0, 2]]
        assert around.dead == [Dead(record(A, 1), "not JSON")]
        around.unreadable = {0: "not JSON"}
        give(runner, record(A, 3))
        await until(lambda: around.committed == {A: 4})
    assert around.sent == [[0, 2]], "there was nothing to send"


async def test_a_request_that_nobody_waits_for_is_cancelled_and_nothing_of_it_committed():
    around = Around()
    around.hold.clear()
    async with working(around) as runner:
        give(runner, record(A, 0), record(B, 0))
        await until(lambda: around.sent)
        assert runner.drop([A])
        assert not around.cancelled, "of the other partition it is waited for"
        assert runner.drop([B])
        await until(lambda: around.cancelled)
        around.hold.set()
        give(runner, record(A, 7))
        await until(lambda: around.committed == {A: 8})
    assert around.sent == [[0, 0], [7]]
    assert len(around.settled) == 1


async def test_who_releases_partitions_hears_when_nothing_of_theirs_is_under_way():
    around = Around()
    around.hold.clear()
    async with working(around, records=1) as runner:
        give(runner, record(A, 0), record(A, 1))
        await until(lambda: around.sent)
        releasing = asyncio.create_task(runner.release({A}))
        done, _ = await asyncio.wait([releasing], timeout=0.1)
        assert not done
        around.hold.set()
        await releasing
        await until(lambda: around.committed == {A: 1})
    assert around.sent == [[0]], "what waited behind it is another's"
    assert runner.tps == set()


async def test_a_record_at_fault_waits_while_the_back_end_is_ill():
    around = Around()
    around.says, around.ill = Suspect("500"), "its /health says 503"
    async with working(around, retries=0) as runner:
        give(runner, record(A, 0))
        await until(lambda: "no dead letter: its /health says 503" in runner.lane.trouble)
        assert not around.dead
        around.ill = ""
        await until(lambda: around.committed == {A: 1})
    assert around.dead == [Dead(record(A, 0), "500")]


async def test_a_back_end_that_words_its_refusals_differently_is_told_once(caplog):
    """Each change of the text was another line."""
    caplog.set_level(logging.INFO)
    around = Around()
    around.hold.set()
    async with working(around) as runner:
        give(runner, record(A, 3))
        for number in range(5):
            around.says = Away(f"refused; it is tried again in {number}.25 s")
            await until(lambda number=number: f"in {number}." in runner.lane.trouble)
        around.says = None
        await until(lambda: not runner.lane.trouble)
        await until(lambda: len(caplog.messages) >= 2)
    waits, over = caplog.messages
    assert "group=g lane=0 cause=back-end" in waits and "is held up no more" in over
