"""What the process takes of its host."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil

from . import catalog
from .figures import Figures

_PROCESS = psutil.Process()  # of one that is forked later, its parent


def process(figures: Figures, worker: int) -> None:
    """Figures of this process. What the system does not tell is left out."""
    own = _PROCESS if _PROCESS.pid == os.getpid() else psutil.Process()
    with suppress(psutil.Error), own.oneshot():
        times, memory = own.cpu_times(), own.memory_info()
        figures.add(catalog.CPU, times.user + times.system, worker)
        figures.add(catalog.RESIDENT, memory.rss, worker)
        figures.add(catalog.VIRTUAL, memory.vms, worker)
        figures.add(catalog.STARTED, own.create_time(), worker)
    with suppress(psutil.Error, AttributeError):
        figures.add(catalog.OPEN_FILES, own.num_fds(), worker)
    with suppress(ImportError, OSError, ValueError):
        import resource

        figures.add(catalog.MOST_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0], worker)
