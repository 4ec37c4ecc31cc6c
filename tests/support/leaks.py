"""What a piece of work has left behind in this process: tasks, threads, file descriptors."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from typing import NamedTuple


class ProcessResources(NamedTuple):
    """What the process holds now. files: what the descriptors are, numbers left out."""

    tasks: Counter[str]
    threads: Counter[str]
    files: Counter[str]

    def __sub__(self, before: ProcessResources) -> ProcessResources:
        return ProcessResources(*(now - then for now, then in zip(self, before, strict=True)))

    def __bool__(self) -> bool:
        return any(tuple(self))


def collect_resources() -> ProcessResources:
    """Within a running loop."""
    gc.collect()
    tasks = (task.get_coro() for task in asyncio.all_tasks())
    return ProcessResources(
        Counter(getattr(each, "__qualname__", repr(each)) for each in tasks),
        Counter(thread.name.rstrip("0123456789") for thread in threading.enumerate()),
        Counter(_describe_descriptor(fd) for fd in os.listdir("/proc/self/fd")),
    )


def _describe_descriptor(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition(":[")[0]
    except OSError:  # that of the listing itself
        return "gone"
