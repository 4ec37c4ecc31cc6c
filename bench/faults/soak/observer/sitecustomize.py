"""Make each Python process with this folder in PYTHONPATH answer signals with what it holds.

After SIGUSR2, or SIGUSR1 for a full garbage collection before it, PID.json in the folder that
SOAK_CENSUS_DIRECTORY names has the tasks by the names of their coroutines, and all objects by their
types that the garbage collector traverses and that were created since the gateway began to serve.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from pathlib import Path

DIRECTORY = os.environ.get("SOAK_CENSUS_DIRECTORY")


def write_census(signal_number: int, frame: object) -> None:
    """Write it to a file, which is there as a whole or not at all."""
    assert DIRECTORY is not None
    if signal_number == signal.SIGUSR1:
        gc.collect()
    tasks: Counter[str] = Counter()
    try:
        for task in asyncio.all_tasks():
            tasks[getattr(task.get_coro(), "__qualname__", "?")] += 1
    except RuntimeError:  # no loop runs
        pass
    types = Counter(
        f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
    )
    path = Path(DIRECTORY, f"{os.getpid()}.json")
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"tasks": tasks, "types": types}))
    new.replace(path)


if DIRECTORY is not None:
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, write_census)
