"""Whether another thread computes in this interpreter.

`os.write` lets go of the interpreter's lock. From a thread that computes in Python it comes back
after a switch interval (5 ms): beside one such thread a write of 290 bytes took 1500 us, and 2 us
by uvloop's `transport.write`, which keeps the lock. Without one it is 1.37 us instead of 1.54.
A gateway by itself has none; an application that mounts it may run some.
"""

from __future__ import annotations

import asyncio
import time

EVERY = 0.5  # seconds; a look costs 2 us, or a switch interval
LONG = 0.001  # seconds


class Lock:
    """The interpreter's; there is one in a process. contended: so it was at the last look."""

    __slots__ = ("contended",)

    def __init__(self) -> None:
        self.contended = False

    def look(self) -> None:
        began = time.perf_counter()
        time.sleep(0)  # lets go of the lock, as `os.write` does
        self.contended = time.perf_counter() - began > LONG


LOCK = Lock()


async def watch() -> None:
    """Look now and then, for ever; to be run beside an application."""
    while True:
        LOCK.look()
        await asyncio.sleep(EVERY)
