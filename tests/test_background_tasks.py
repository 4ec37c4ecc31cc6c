from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from contextvars import Context, ContextVar

import pytest
from support.waiting import WAIT_TIMEOUT_S

from gateway.background_tasks import (
    BackgroundTasks,
    run_supervised,
    start_shared_task,
    wait_for_shared,
)

CANCELLED = ValueError("the task was cancelled")

log = logging.getLogger("gateway.test")
variable: ContextVar[str] = ContextVar("variable", default="unset")


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def fail(message: str) -> None:
    raise ValueError(message)


async def test_a_task_is_held_until_it_has_ended():
    tasks, futures = BackgroundTasks(log), list[weakref.ref[asyncio.Future[None]]]()

    async def wait_for_future() -> None:
        # Only the task refers to this future, and only the future to the task.
        future = asyncio.get_running_loop().create_future()
        futures.append(weakref.ref(future))
        await future

    tasks.start(wait_for_future(), "a test")
    await asyncio.sleep(0)
    gc.collect()
    future = futures[0]()
    assert future is not None, "the task was collected"
    future.set_result(None)
    await tasks.wait()
    assert len(tasks) == 0


async def test_the_result_of_a_task_can_be_awaited():
    async def return_seven() -> int:
        return 7

    assert await BackgroundTasks(log).start(return_seven(), "a test") == 7


async def test_an_error_is_logged_with_the_name_of_the_task(caplog: pytest.LogCaptureFixture):
    tasks = BackgroundTasks(log)
    tasks.start(fail("no such thing"), "the end of an instance")
    await tasks.wait()
    await asyncio.sleep(0)
    (line,) = caplog.records
    assert (line.name, line.levelname) == ("gateway.test", "ERROR")
    assert line.getMessage() == "the end of an instance failed"
    assert line.exc_info is not None and "no such thing" in str(line.exc_info[1])


async def test_closing_cancels_what_still_runs_and_logs_nothing(caplog: pytest.LogCaptureFixture):
    tasks = BackgroundTasks(log)
    task = tasks.start(wait_for_ever(), "a test")
    await tasks.close()
    assert task.cancelled()
    assert not len(tasks) and not caplog.records


async def test_closing_lets_tasks_end_within_the_time_that_they_are_given():
    tasks = BackgroundTasks(log)
    short, long = tasks.start(asyncio.sleep(0.01), "short"), tasks.start(wait_for_ever(), "long")
    await tasks.close(0.1)
    assert (short.cancelled(), long.cancelled()) == (False, True)


async def test_cancelled_tasks_are_waited_for():
    tasks, is_clean = BackgroundTasks(log), asyncio.Event()

    async def clean_up_slowly() -> None:
        try:
            await wait_for_ever()
        finally:
            await asyncio.sleep(0.01)
            is_clean.set()

    tasks.start(clean_up_slowly(), "a test")
    await asyncio.sleep(0)
    tasks.cancel()
    assert not is_clean.is_set()
    await tasks.wait()
    assert is_clean.is_set()


async def test_closing_leaves_no_task_that_is_started_meanwhile():
    """The tasks were waited for once, and one that another started at its end ran on."""
    tasks = BackgroundTasks(log)
    started = list[asyncio.Task[None]]()

    async def start_another_at_the_end() -> None:
        try:
            await wait_for_ever()
        finally:
            started.append(tasks.start(wait_for_ever(), "another"))

    tasks.start(start_another_at_the_end(), "a test")
    await asyncio.sleep(0)
    await asyncio.wait_for(tasks.close(), WAIT_TIMEOUT_S)
    assert [task.cancelled() for task in started] == [True]
    assert not len(tasks)


async def test_waiting_for_all_includes_those_that_are_started_meanwhile():
    tasks, is_over = BackgroundTasks(log), asyncio.Event()

    async def start_another() -> None:
        await asyncio.sleep(0)
        tasks.start(set_later(), "another")

    async def set_later() -> None:
        await asyncio.sleep(0)
        is_over.set()

    tasks.start(start_another(), "a test")
    await asyncio.wait_for(tasks.wait(), WAIT_TIMEOUT_S)
    assert is_over.is_set()


async def test_a_task_may_have_a_context_of_its_own():
    async def read_variable() -> str:
        return variable.get()

    variable.set("set")
    tasks = BackgroundTasks(log)
    assert await tasks.start(read_variable(), "a copy") == "set"
    assert await tasks.start(read_variable(), "its own", context=Context()) == "unset"


async def test_the_first_task_to_end_can_end_the_wait():
    tasks = BackgroundTasks(log)
    tasks.start(wait_for_ever(), "a test")
    tasks.start(asyncio.sleep(0), "another test")
    await asyncio.wait_for(tasks.wait(return_when=asyncio.FIRST_COMPLETED), WAIT_TIMEOUT_S)
    assert len(tasks) == 1
    await tasks.close()


class FailingWork:
    """Work that fails when it is ended, or at once."""

    def __init__(self, *, fails_at_once: bool) -> None:
        self.has_begun = asyncio.Semaphore(0)
        self._fails_at_once = fails_at_once

    async def run(self) -> None:
        self.has_begun.release()
        try:
            if not self._fails_at_once:
                await asyncio.Event().wait()
        finally:
            raise ValueError("it broke")


async def test_work_that_fails_is_begun_again():
    work = FailingWork(fails_at_once=True)
    running = asyncio.create_task(run_supervised(work.run, "it", restart_delay_s=0.0))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        for _ in range(3):
            await work.has_begun.acquire()
        running.cancel()
        await asyncio.wait([running])


async def test_work_that_fails_while_it_ends_is_not():
    """It was begun again, and the sidecar never ended."""
    work = FailingWork(fails_at_once=False)
    running = asyncio.create_task(run_supervised(work.run, "it"))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        await work.has_begun.acquire()
        running.cancel()
        await asyncio.wait([running])
    assert work.has_begun.locked()


async def wait_for_event(event: asyncio.Event) -> str:
    await event.wait()
    return "done"


async def test_a_caller_that_gives_up_leaves_the_task_to_the_others():
    event = asyncio.Event()
    task = start_shared_task(wait_for_event(event))
    callers = [asyncio.create_task(wait_for_shared(task, CANCELLED)) for _ in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    event.set()
    assert await callers[1] == "done"
    assert callers[0].cancelled()


async def test_a_cancelled_task_is_an_error_for_those_who_wait():
    task = start_shared_task(wait_for_event(asyncio.Event()))
    caller = asyncio.create_task(wait_for_shared(task, ValueError("broker 3 moved")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="broker 3 moved"):
        await caller


async def test_a_caller_that_is_cancelled_together_with_the_task_ends():
    task = start_shared_task(wait_for_event(asyncio.Event()))
    caller = asyncio.create_task(wait_for_shared(task, CANCELLED))
    await asyncio.sleep(0)
    task.cancel()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_failure_that_nobody_waits_for_is_no_warning(caplog: pytest.LogCaptureFixture):
    async def fail() -> None:
        raise ValueError("away")

    task = start_shared_task(fail())
    await asyncio.wait([task])
    del task
    await asyncio.sleep(0)
    assert caplog.text == ""
