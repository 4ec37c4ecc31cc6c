"""One process at a time runs a job, or changes its checkpoint.

On this machine the lease is a lock on a file, which ends with its holder however that ends. On
other file systems there is none: there a job counts as running while its log is fresh.
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

ACTIVE_WINDOW_S = 300.0  # s


@contextlib.contextmanager
def hold_lease(directory: str, job: str) -> Iterator[None]:
    """While this lasts, no other process of this machine holds it. Raises PipelineError: one
    does."""
    root = versions.local_path(directory)
    if root is None:
        yield
        return
    root.mkdir(parents=True, exist_ok=True)
    with (root / layout.LEASE_FILE).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PipelineError(f"{job} is run by {holder}; end that first") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


class Lease:
    """The lease of a job that is started again where that may help: taken once, and kept.

    A second lock would be refused by the first, although both are of one process.
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
        """Take it, unless it is taken.

        Raises:
            PipelineError: Another process has it.
        """
        if not self._is_held:
            self._stack.enter_context(hold_lease(self._directory, self._job))
            self._is_held = True


def is_active(files: Files, now: float | None = None) -> bool:
    """Did a batch begin or end within five minutes? now: seconds since the epoch."""
    sizes = files.list_sizes()
    now = time.time() if now is None else now
    for log in ("offsets", "commits"):
        for batch in layout.parse_batches(sizes, log)[-1:]:
            with contextlib.suppress(FileNotFoundError):
                if now - files.get_mtime(f"{log}/{batch}") < ACTIVE_WINDOW_S:
                    return True
    return False
