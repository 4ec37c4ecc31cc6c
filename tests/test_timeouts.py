"""`asyncio.timeout` in a task that is being cancelled, on every Python."""

from __future__ import annotations

import asyncio

import pytest

from gateway.timeouts import repair_timeouts


@pytest.fixture(params=["as imported", "repaired again"])
def timeouts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "repaired again":
        for name in ("__aenter__", "__aexit__"):
            monkeypatch.setattr(asyncio.Timeout, name, getattr(asyncio.Timeout, name))
        repair_timeouts()


async def test_what_is_cleaned_up_in_a_cancelled_task_may_time_out(timeouts: None):
    """It raised CancelledError with Python 3.11.2, and the rest of the clean-up was left out."""
    raised = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.Event().wait()
            except BaseException as error:
                raised.append(type(error))

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert raised == [TimeoutError]


async def test_a_task_that_is_cancelled_before_its_timeout_is_cancelled(timeouts: None):
    async def work() -> None:
        async with asyncio.timeout(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_outside_of_any_cancellation_raises_its_error(timeouts: None):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
