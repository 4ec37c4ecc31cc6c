"""Ensure that only one process at a time runs a job or changes its checkpoint.

On a local disk the lease is a lock on a file. The operating system releases it when the process
ends, however that happens. Other file systems have no such lock. There, a job counts as active
while its newest batch has begun or ended recently.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import versions

from . import layout
from .files import Files

ACTIVE_WINDOW_S = 300.0


@contextlib.contextmanager
def hold_lease(directory: str, job: str) -> Iterator[None]:
    """Hold the lease of a local job; raise PipelineError if another process holds it."""
    root = versions.local_path(directory)
    if root is None:
        yield
        return
    # "a+" creates the file and does not truncate it: another process's text is needed below.
    root.mkdir(parents=True, exist_ok=True)
    with (root / layout.LEASE_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(f"{job} is run by {holder}; end that first") from None
        # The text is only for the error above. Closing the file releases the lock.
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


class Lease:
    """The lease of a job whose query may be started several times, as a context manager.

    The runner owns it. It is acquired once and held until the context ends. A second `flock` of the
    file would fail, although the same process holds the first.
    """

    def __init__(self, directory: str, job: str) -> None:
        self._directory = directory
        self._job = job
        self._stack = contextlib.ExitStack()
        self._is_held = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def acquire(self) -> None:
        if not self._is_held:
            self._stack.enter_context(hold_lease(self._directory, self._job))
            self._is_held = True


def is_active(files: Files, now: float | None = None) -> bool:
    """Return whether the newest batch of a checkpoint has begun or ended within five minutes."""
    sizes = files.list_sizes()
    now = time.time() if now is None else now
    for log in ("offsets", "commits"):
        for batch in layout.parse_batches(sizes, log)[-1:]:
            with contextlib.suppress(FileNotFoundError):
                if now - files.get_mtime(f"{log}/{batch}") < ACTIVE_WINDOW_S:
                    return True
    return False
