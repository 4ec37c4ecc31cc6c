"""`asyncio.timeout` in a task that is being cancelled, on every Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.timeouts import repair_timeouts


class EarlyTimeout(asyncio.Timeout):
    """As Python 3.11.2 has it: it takes a task that is being cancelled for cancelled anew."""

    async def __aenter__(self) -> Any:
        await super().__aenter__()
        self._cancelling = 0
        return self

    async def __aexit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if not self.expired():
            await super().__aexit__(exc_type, exc, traceback)
        elif self._task.uncancel() <= 0 and exc_type is asyncio.CancelledError:  # type: ignore
            raise TimeoutError


repair_timeouts(EarlyTimeout)


def open_early(delay_s: float) -> asyncio.Timeout:
    return EarlyTimeout(asyncio.get_running_loop().time() + delay_s)


every_python = pytest.mark.parametrize("timeout", [asyncio.timeout, open_early])
Timeout = Callable[[float], asyncio.Timeout]


async def clean_up_cancelled(clean_up: Callable[[], Any]) -> BaseException | None:
    """What the clean-up of a task raises when the task is cancelled."""
    raised: list[BaseException] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await clean_up()
            except BaseException as error:
                raised.append(error)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return raised[0] if raised else None


@every_python
async def test_what_is_cleaned_up_in_a_cancelled_task_may_time_out(timeout: Timeout):
    """It raised CancelledError with Python 3.11.2, and the rest of the clean-up was left out."""

    async def clean_up() -> None:
        async with timeout(0.01):
            await asyncio.Event().wait()

    assert type(await clean_up_cancelled(clean_up)) is TimeoutError


@every_python
async def test_the_inner_of_two_timeouts_is_told_first(timeout: Timeout):
    heard = []

    async def clean_up() -> None:
        async with timeout(600) as outer:
            with pytest.raises(TimeoutError):
                async with timeout(0.01):
                    await asyncio.Event().wait()
            heard.append(outer.expired())
            outer.reschedule(asyncio.get_running_loop().time() + 0.01)
            await asyncio.Event().wait()

    assert type(await clean_up_cancelled(clean_up)) is TimeoutError
    assert heard == [False]


@every_python
async def test_a_task_that_is_cancelled_anew_in_its_clean_up_is_cancelled(timeout: Timeout):
    async def clean_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with timeout(60):
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.Event().wait()

    assert type(await clean_up_cancelled(clean_up)) is asyncio.CancelledError


@every_python
async def test_outside_of_any_cancellation_it_raises_its_error(timeout: Timeout):
    with pytest.raises(TimeoutError):
        async with timeout(0.01):
            await asyncio.Event().wait()
