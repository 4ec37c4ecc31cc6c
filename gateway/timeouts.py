"""Let `asyncio.timeout` raise TimeoutError in a task that is being cancelled, also before 3.11.3.

Python 3.11.2, which Debian 12 has, raises CancelledError there (CPython gh-102780). Work with a
timeout in a cancelled task, such as a last commit, was then given up: a reactive group did not
deliver records. `import gateway` imports this module only on such a Python.
"""

from __future__ import annotations

import asyncio
from typing import Any


def repair_timeouts(timeout_class: Any = asyncio.Timeout) -> None:
    enter, exit = timeout_class.__aenter__, timeout_class.__aexit__

    async def enter_timeout(self: Any) -> Any:
        await enter(self)
        self._cancelling = self._task.cancelling()
        return self

    async def exit_timeout(self: Any, exc_type: Any, exc: Any, traceback: Any) -> None:
        is_expired = self.expired()
        await exit(self, exc_type, exc, traceback)
        if (
            is_expired
            and exc_type is asyncio.CancelledError
            and self._task.cancelling() <= self._cancelling
        ):
            raise TimeoutError from exc

    timeout_class.__aenter__, timeout_class.__aexit__ = enter_timeout, exit_timeout
