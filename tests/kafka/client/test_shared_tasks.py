"""Callers that wait for one task: who gives up takes it from nobody else."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import BrokerUnavailable
from gateway.kafka.client.shared_tasks import start_shared_task, wait_for_shared


async def wait_for_event(event: asyncio.Event) -> str:
    await event.wait()
    return "done"


async def test_a_caller_that_gives_up_leaves_the_task_to_the_others():
    event = asyncio.Event()
    task = start_shared_task(wait_for_event(event))
    callers = [asyncio.create_task(wait_for_shared(task)) for _ in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    event.set()
    assert await callers[1] == "done"
    assert callers[0].cancelled()


async def test_a_cancelled_task_is_an_error_for_those_who_wait():
    task = start_shared_task(wait_for_event(asyncio.Event()))
    caller = asyncio.create_task(wait_for_shared(task, "broker 3 moved", node=3))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(BrokerUnavailable, match="broker 3 moved") as caught:
        await caller
    assert caught.value.node == 3


async def test_a_caller_that_is_cancelled_together_with_the_task_ends():
    task = start_shared_task(wait_for_event(asyncio.Event()))
    caller = asyncio.create_task(wait_for_shared(task))
    await asyncio.sleep(0)
    task.cancel()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_failure_that_nobody_waits_for_is_no_warning(caplog: pytest.LogCaptureFixture):
    async def fail() -> None:
        raise BrokerUnavailable("away")

    task = start_shared_task(fail())
    await asyncio.wait([task])
    del task
    await asyncio.sleep(0)
    assert caplog.text == ""
