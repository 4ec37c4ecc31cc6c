"""Which ids the lines of a task have."""

from __future__ import annotations

import asyncio

from gateway.telemetry.logs import (
    bind_log_context,
    create_detached_task,
    get_log_context,
    log_context,
)


async def what_it_is_about() -> dict[str, object]:
    await asyncio.sleep(0)
    return dict(get_log_context())


async def test_lines_are_about_what_was_entered_with_what_was_there_before():
    with log_context(route="/a"):
        with log_context(stream=7):
            assert get_log_context() == {"route": "/a", "stream": 7}
        assert get_log_context() == {"route": "/a"}
    assert get_log_context() == {}


async def test_a_task_is_about_what_its_beginner_was_and_what_it_notes_is_its_own():
    async def one(number: int) -> dict[str, object]:
        bind_log_context(stream=number)
        return await what_it_is_about()

    with log_context(route="/a"):
        both = await asyncio.gather(one(1), one(2))
    assert both == [{"route": "/a", "stream": 1}, {"route": "/a", "stream": 2}]
    assert get_log_context() == {}


async def test_what_is_for_all_is_about_nobody_whoever_begins_it():
    with log_context(route="/a", stream=7):
        task = create_detached_task(what_it_is_about())
    assert await task == {}
