"""Measure what the process uses of its host, and the lag of its event loop; start daemon threads.

`asyncio.to_thread` is not used, because its threads are joined when the loop closes and again when
the process exits: a telemetry back end that does not answer would delay both.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

import psutil

from gateway.telemetry import catalog

from .counts import Histogram
from .samples import MetricSamples

_PROCESS = psutil.Process()  # in a process that is forked later this is still the parent


def _count_open_files(process: psutil.Process) -> int:
    """Return the number of open file descriptors.

    Since Linux 6.2 the size of `/proc/self/fd` is this number: reading it takes 1 us, listing the
    folder 8 ms with 10,000 descriptors. Older kernels have a size of 0 there.
    """
    size = os.stat("/proc/self/fd").st_size if sys.platform == "linux" else 0
    return size or int(process.num_fds())


def collect_process_metrics(samples: MetricSamples, worker: int) -> None:
    own = _PROCESS if _PROCESS.pid == os.getpid() else psutil.Process()
    with suppress(psutil.Error), own.oneshot():
        times, memory = own.cpu_times(), own.memory_info()
        samples.add(catalog.PROCESS_CPU_SECONDS, times.user + times.system, worker)
        samples.add(catalog.PROCESS_RESIDENT_MEMORY_BYTES, memory.rss, worker)
        samples.add(catalog.PROCESS_VIRTUAL_MEMORY_BYTES, memory.vms, worker)
        samples.add(catalog.PROCESS_START_TIME_SECONDS, own.create_time(), worker)
    with suppress(psutil.Error, AttributeError, OSError):
        samples.add(catalog.PROCESS_OPEN_FDS, _count_open_files(own), worker)
    with suppress(ImportError, OSError, ValueError):
        import resource

        samples.add(catalog.PROCESS_MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0], worker)


INTERVAL_S = 0.25  # seconds between measurements, each of which takes 20 us


class LoopLag:
    def __init__(self) -> None:
        self.seconds = Histogram()

    async def run(self) -> None:
        while True:
            due = perf_counter() + INTERVAL_S  # uvloop's clock has a resolution of 1 ms
            await asyncio.sleep(INTERVAL_S)
            self.seconds.observe(max(0.0, perf_counter() - due))


T = TypeVar("T")


async def run_in_thread(func: Callable[[], T], name: str) -> T:
    """Run a function in a daemon thread, which goes on if the caller is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = func()
        except BaseException as exc:
            error = exc
        with suppress(RuntimeError):  # the loop is closed, so nobody waits for the result
            loop.call_soon_threadsafe(set_outcome, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
