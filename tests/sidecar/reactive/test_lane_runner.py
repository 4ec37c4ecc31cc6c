"""A lane at work among doubles of what it works with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.tasks import running_task
from support.waiting import wait_until

from gateway.core.delivery.delivery_queue import DeadLetterRecord, DeliveryRules, SettledRecords
from gateway.core.delivery.verdict import (
    BackendUnavailable,
    BatchResults,
    RecordResult,
    SuspectBatch,
    Verdict,
)
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, RegistryUnavailable
from gateway.sidecar.reactive.backend import EncodedBatch
from gateway.sidecar.reactive.dead_letters import DeadLetterResult
from gateway.sidecar.reactive.lanes import LaneContext, LaneRunner, OffsetCommitter

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class FakeSurroundings:
    """Back end, writer and dead letters at once. says, raises, hold: of the back end."""

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.write_error: Exception | None = None
        self.unreadable_reasons: dict[int, str] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure = ""
        self.sent_offsets: list[list[int]] = []
        self.cancelled_count = 0
        self.dead_letters: list[DeadLetterRecord] = []
        self.settled_steps: list[SettledRecords] = []
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.commit_count = 0
        self.commit_error: KafkaError | None = None
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def write(self, dead: Sequence[DeadLetterRecord]) -> DeadLetterResult:
        self.dead_letters += dead
        return DeadLetterResult()

    async def encode(self, records: Sequence[Record]) -> EncodedBatch:
        if self.write_error is not None:
            raise self.write_error
        sent = [
            record for index, record in enumerate(records) if index not in self.unreadable_reasons
        ]
        return EncodedBatch(b"[]", sent, self.unreadable_reasons)

    async def post(
        self, body: bytes, sent: Sequence[Record], headers: Mapping[str, str]
    ) -> Verdict:
        self.sent_offsets.append([item.offset for item in sent])
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        return self.verdict or BatchResults([RecordResult(True)] * len(sent))

    async def describe_failure(self) -> str:
        return self.failure

    async def commit(self, points: Mapping[TopicPartition, int]) -> None:
        self.commit_count += 1
        await self.may_commit.wait()
        if self.commit_error is not None:
            raise self.commit_error
        self.committed_offsets |= points


@asynccontextmanager
async def running_runner(around: FakeSurroundings, **rules: Any) -> AsyncIterator[LaneRunner]:
    points = OffsetCommitter("g", around.commit)
    double: Any = around
    works = LaneContext("g", double, double, double, points, around.settled_steps.append)
    runner = LaneRunner(
        DeliveryRules(first_delay=0.01, max_delay=0.02, **rules), works, lambda _: None
    )
    async with running_task(runner.run()), running_task(points.run()):
        yield runner


def give_records(runner: LaneRunner, *records: Record) -> None:
    runner.tps |= {record.tp for record in records}
    runner.queue.put(records)
    runner.wake()


def record(tp: TopicPartition, offset: int) -> Record:
    return Record(tp, offset, 0, 0, b"k", b"v")


async def test_while_schemas_cannot_be_asked_for_or_the_sidecar_itself_fails_a_batch_is_kept():
    around = FakeSurroundings()
    async with running_runner(around, max_retries=0) as runner:
        for why in (RegistryUnavailable("the registry is away", retry_after=0.01), KeyError("x")):
            around.write_error = why
            give_records(runner, record(A, 3))
            await wait_until(lambda: runner.queue.problem)
            assert not around.settled_steps
            around.write_error = None
            await wait_until(lambda: around.settled_steps)
            around.settled_steps.clear()
    assert (around.dead_letters, around.committed_offsets) == ([], {A: 4})


async def test_records_that_cannot_be_read_are_not_sent_and_the_others_are():
    around = FakeSurroundings()
    around.unreadable_reasons = {1: "not JSON"}
    async with running_runner(around) as runner:
        give_records(runner, *(record(A, offset) for offset in range(3)))
        await wait_until(lambda: around.committed_offsets == {A: 3})
        assert around.sent_offsets == [[0, 2]]
        assert around.dead_letters == [DeadLetterRecord(record(A, 1), "not JSON")]
        around.unreadable_reasons = {0: "not JSON"}
        give_records(runner, record(A, 3))
        await wait_until(lambda: around.committed_offsets == {A: 4})
    assert around.sent_offsets == [[0, 2]], "there was nothing to send"


async def test_a_request_that_nobody_waits_for_is_cancelled_and_nothing_of_it_committed():
    around = FakeSurroundings()
    around.may_answer.clear()
    async with running_runner(around) as runner:
        give_records(runner, record(A, 0), record(B, 0))
        await wait_until(lambda: around.sent_offsets)
        assert runner.drop([A])
        assert not around.cancelled_count, "of the other partition it is waited for"
        assert runner.drop([B])
        await wait_until(lambda: around.cancelled_count)
        around.may_answer.set()
        give_records(runner, record(A, 7))
        await wait_until(lambda: around.committed_offsets == {A: 8})
    assert around.sent_offsets == [[0, 0], [7]]
    assert len(around.settled_steps) == 1


async def test_releasing_partitions_waits_until_none_of_their_records_is_in_flight():
    around = FakeSurroundings()
    around.may_answer.clear()
    async with running_runner(around, max_records=1) as runner:
        give_records(runner, record(A, 0), record(A, 1))
        await wait_until(lambda: around.sent_offsets)
        releasing = asyncio.create_task(runner.release({A}))
        done, _ = await asyncio.wait([releasing], timeout=0.1)
        assert not done
        around.may_answer.set()
        await releasing
        await wait_until(lambda: around.committed_offsets == {A: 1})
    assert around.sent_offsets == [[0]], "what waited behind it is another's"
    assert runner.tps == set()


async def test_while_a_commit_gets_no_answer_a_lane_sends_two_batches_and_no_third():
    """It went on, and all of it came again after a takeover."""
    around = FakeSurroundings()
    around.may_commit.clear()
    async with running_runner(around, max_records=1) as runner:
        give_records(runner, *(record(A, offset) for offset in range(5)))
        await wait_until(lambda: len(around.settled_steps) == 2)
        for _ in range(20):
            runner.wake()
            await asyncio.sleep(0)
        assert around.sent_offsets == [[0], [1]]
        around.may_commit.set()
        await wait_until(lambda: around.committed_offsets == {A: 5})
    assert around.sent_offsets == [[0], [1], [2], [3], [4]]


async def test_dead_letters_are_written_while_commits_fail():
    """They are of a batch that was answered; partitions that were revoked waited for them."""
    around = FakeSurroundings()
    around.commit_error = BrokerUnavailable("away")
    async with running_runner(around, max_records=1, rollback_percent=None) as runner:
        around.may_commit.clear()
        give_records(runner, record(A, 0))
        await wait_until(lambda: around.commit_count == 1)
        around.may_answer.clear()
        give_records(runner, record(A, 1))
        await wait_until(lambda: around.sent_offsets == [[0], [1]])
        around.may_commit.set()
        await wait_until(lambda: around.commit_count == 2, timeout_s=10)  # the first one failed
        around.verdict = BatchResults([RecordResult(False, "no such customer")])
        around.may_answer.set()
        await wait_until(lambda: around.dead_letters)
        around.commit_error = None
        await wait_until(lambda: around.committed_offsets == {A: 2})


async def test_a_record_at_fault_waits_while_the_back_end_is_ill():
    around = FakeSurroundings()
    around.verdict, around.failure = SuspectBatch("500"), "its /health says 503"
    async with running_runner(around, max_retries=0) as runner:
        give_records(runner, record(A, 0))
        await wait_until(lambda: "no dead letter: its /health says 503" in runner.queue.problem)
        assert not around.dead_letters
        around.failure = ""
        await wait_until(lambda: around.committed_offsets == {A: 1})
    assert around.dead_letters == [DeadLetterRecord(record(A, 0), "500")]


async def test_an_outage_whose_messages_differ_is_logged_once(caplog):
    """Each change of the text was another line."""
    caplog.set_level(logging.INFO)
    around = FakeSurroundings()
    around.may_answer.set()
    async with running_runner(around) as runner:
        give_records(runner, record(A, 3))
        for number in range(5):
            around.verdict = BackendUnavailable(f"refused; it is tried again in {number}.25 s")
            await wait_until(lambda number=number: f"in {number}." in runner.queue.problem)
        around.verdict = None
        await wait_until(lambda: not runner.queue.problem)
        await wait_until(lambda: len(caplog.messages) >= 2)
    waits, over = caplog.messages
    assert "group=g lane=0 cause=back-end" in waits and "is held up no more" in over
