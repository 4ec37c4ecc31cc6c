"""What a piece of work has left behind in this process: tasks, threads, file descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from typing import NamedTuple


class Held(NamedTuple):
    """What the process holds now. files: what the descriptors are, numbers left out."""

    tasks: Counter[str]
    threads: Counter[str]
    files: Counter[str]

    def __sub__(self, before: Held) -> Held:
        return Held(*(now - then for now, then in zip(self, before, strict=True)))

    def __bool__(self) -> bool:
        return any(tuple(self))


def held() -> Held:
    """Within a running loop."""
    gc.collect()
    tasks = (task.get_coro() for task in asyncio.all_tasks())
    return Held(
        Counter(getattr(each, "__qualname__", repr(each)) for each in tasks),
        Counter(thread.name.rstrip("0123456789") for thread in threading.enumerate()),
        Counter(_kind(fd) for fd in os.listdir("/proc/self/fd")),
    )


def _kind(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]
    except OSError:  # that of the listing itself
        return "gone"
