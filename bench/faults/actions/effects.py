"""What the faults share: how they are described, and looking whether they took effect.

A fault is a function of the world and its plan that returns an async context manager. Entering it
does it, verifies that it took effect, and gives a sentence that says how that was seen; leaving it
heals it. A fault that cannot be done here raises `FaultNotPossible` with what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from confluent_kafka import KafkaException
from support.waiting import wait_until

from ..clients import FaultClient
from ..schedule import PlannedFault
from ..world import World

FaultAction: TypeAlias = Callable[[World, PlannedFault], AbstractAsyncContextManager[str]]
Result = TypeVar("Result")
EFFECT_TIMEOUT_S = 60.0
PASSING_ERRORS = (
    "_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "NOT_CONTROLLER", "FENCED_LEADER_EPOCH",
    "_DESTROY_BROKER",
)  # fmt: skip


class FaultNotPossible(Exception):
    """A fault needs something that this machine or this run lacks."""


async def wait_for_effect(
    condition: Callable[[], object], description: str | Callable[[], str]
) -> None:
    """Wait for a condition of the event loop's own. TimeoutError with the description."""
    await wait_until(condition, description, EFFECT_TIMEOUT_S, 0.05)


async def poll_effect(condition: Callable[[], object], description: str) -> None:
    """Wait for a condition that asks Kafka, in a thread. TimeoutError with the description.

    Errors of Kafka count as not yet: another fault may keep the broker away that is asked.
    """
    deadline = asyncio.get_running_loop().time() + EFFECT_TIMEOUT_S
    while True:
        with contextlib.suppress(KafkaException):
            if await asyncio.to_thread(condition):
                return
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"{description}: not within {EFFECT_TIMEOUT_S:g} s")
        await asyncio.sleep(0.1)


async def ask_kafka(call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Call a method of the admin client in a thread, again while another fault keeps it away."""
    deadline = asyncio.get_running_loop().time() + EFFECT_TIMEOUT_S
    while True:
        try:
            return await asyncio.to_thread(call, *arguments, **options)
        except KafkaException as error:
            if error.args[0].name() not in PASSING_ERRORS:
                raise
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.2)


@asynccontextmanager
async def clients_away(clients: Collection[FaultClient]) -> AsyncIterator[None]:
    """Have clients go away, and come back at the end with their last positions."""
    leaving = [client for client in clients if not client.is_closed]
    await asyncio.gather(*(client.stop() for client in leaving))
    try:
        yield
    finally:
        for client in leaving:
            await client.start()
