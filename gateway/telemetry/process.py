"""Measure what the process uses of its host: CPU time, memory, file descriptors."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import psutil

from . import catalog
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
