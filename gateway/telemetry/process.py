"""What the process takes of its host."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import psutil

from . import catalog
from .samples import MetricSamples

_PROCESS = psutil.Process()  # of one that is forked later, its parent


def _count_open_files(process: psutil.Process) -> int:
    """Linux 6.2 and later tells it as the size of the folder: 1 us, where the list of 10,000 takes
    8 ms."""
    told = os.stat("/proc/self/fd").st_size if sys.platform == "linux" else 0
    return told or int(process.num_fds())


def collect_process_metrics(samples: MetricSamples, worker: int) -> None:
    """Figures of this process. What the system does not tell is left out."""
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
