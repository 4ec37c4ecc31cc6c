"""What an operator is told of a reload in several workers."""

from __future__ import annotations

import asyncio
from typing import Any

from support.worker_buses import worker_buses

from gateway.web.admin.configuration import RELOAD_TOPIC, ReloadCoordinator
from gateway.web.admin.reload import ReloadOutcome

OUTCOME = ReloadOutcome(2, 1, 0, 0, {"kept": 5}, 0.25, ())


class StubReloader:
    """What a coordinator asks of the `Reloader` of its process."""

    def __init__(self, applied_number: int, last_outcome: ReloadOutcome | None = None) -> None:
        self.applied_number = applied_number
        self.last_outcome = last_outcome
        self.last_preview = None


async def reload(
    *reloaders: StubReloader, late: StubReloader | None = None, **options: Any
) -> dict[str, Any]:
    """Reload as the third time, by the first of some workers. late: has not applied it yet.

    options: of `ReloadCoordinator`.
    """
    async with worker_buses(len(reloaders)) as made:

        def handle_reload(worker: int, data: Any) -> int:
            if late is not None:
                loop.call_later(0.2, apply_late, late)
            return 3

        def apply_late(reloader: StubReloader) -> None:
            reloader.applied_number, reloader.last_outcome = 3, OUTCOME

        loop = asyncio.get_running_loop()
        coordinators = [
            ReloadCoordinator(reloader, bus, **options)
            for reloader, bus in zip(reloaders, made.buses, strict=True)
        ]
        made.relay.add_handler(RELOAD_TOPIC, handle_reload)
        await made.start()
        return await coordinators[0]()


async def test_all_workers_are_waited_for_and_their_streams_added_up():
    late = StubReloader(2, ReloadOutcome(9, 9, 9, 9, {"ended": 9}, 9.0, ()))
    told = await reload(StubReloader(3, OUTCOME), late, late=late)
    assert told["missing"] == []
    assert told["streams"] == {"kept": 10}
    assert told["routes"] == {"same": 2, "changed": 1, "added": 0, "removed": 0}


async def test_a_worker_that_was_restarted_meanwhile_is_not_missing():
    """It was started with the new configuration, and was waited for in vain for 30 s."""
    told = await reload(StubReloader(3), StubReloader(3, OUTCOME))
    assert told["missing"] == []
    assert told["streams"] == {"kept": 5}
    assert told["routes"]["same"] == 2


async def test_a_worker_that_does_not_apply_it_is_missing():
    told = await reload(StubReloader(3, OUTCOME), StubReloader(2, OUTCOME), timeout_s=0.5)
    assert told["missing"] == [2]
    assert told["streams"] == {"kept": 5}
