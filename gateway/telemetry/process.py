"""What the process takes of its host."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import psutil

from . import catalog
from .figures import Figures

_PROCESS = psutil.Process()  # of one that is forked later, its parent


def _open_files(own: psutil.Process) -> int:
    """Linux 6.2 and later tells it as the size of the folder: 1 us, where the list of 10,000 takes
    8 ms."""
    told = os.stat("/proc/self/fd").st_size if sys.platform == "linux" else 0
    return told or int(own.num_fds())


def process(figures: Figures, worker: int) -> None:
    """Figures of this process. What the system does not tell is left out."""
    own = _PROCESS if _PROCESS.pid == os.getpid() else psutil.Process()
    with suppress(psutil.Error), own.oneshot():
        times, memory = own.cpu_times(), own.memory_info()
        figures.add(catalog.CPU, times.user + times.system, worker)
        figures.add(catalog.RESIDENT, memory.rss, worker)
        figures.add(catalog.VIRTUAL, memory.vms, worker)
        figures.add(catalog.STARTED, own.create_time(), worker)
    with suppress(psutil.Error, AttributeError, OSError):
        figures.add(catalog.OPEN_FILES, _open_files(own), worker)
    with suppress(ImportError, OSError, ValueError):
        import resource

        figures.add(catalog.MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0], worker)
