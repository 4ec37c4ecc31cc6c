"""Which ids the lines of a task have."""

from __future__ import annotations

import asyncio

from gateway.telemetry.about import about, apart, note, noted


async def what_it_is_about() -> dict[str, object]:
    await asyncio.sleep(0)
    return dict(noted())


async def test_lines_are_about_what_was_entered_with_what_was_there_before():
    with about(route="/a"):
        with about(stream=7):
            assert noted() == {"route": "/a", "stream": 7}
        assert noted() == {"route": "/a"}
    assert noted() == {}


async def test_a_task_is_about_what_its_beginner_was_and_what_it_notes_is_its_own():
    async def one(number: int) -> dict[str, object]:
        note(stream=number)
        return await what_it_is_about()

    with about(route="/a"):
        both = await asyncio.gather(one(1), one(2))
    assert both == [{"route": "/a", "stream": 1}, {"route": "/a", "stream": 2}]
    assert noted() == {}


async def test_what_is_for_all_is_about_nobody_whoever_begins_it():
    with about(route="/a", stream=7):
        task = apart(what_it_is_about())
    assert await task == {}
