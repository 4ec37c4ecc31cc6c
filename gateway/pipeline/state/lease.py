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
from gateway.pipeline.checkpoint import checkpoints

from . import layout
from .files import Files

FRESH = 300.0  # s


@contextlib.contextmanager
def held(checkpoint: str, job: str) -> Iterator[None]:
    """While this lasts, no other process of this machine holds it. Raises PipelineError: one
    does."""
    root = checkpoints.local(checkpoint)
    if root is None:
        yield
        return
    root.mkdir(parents=True, exist_ok=True)
    with (root / layout.LEASE).open("a+") as file:
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

    def __init__(self, checkpoint: str, job: str) -> None:
        self._checkpoint = checkpoint
        self._job = job
        self._stack = contextlib.ExitStack()
        self._taken = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def take(self) -> None:
        """Take it, unless it is taken.

        Raises:
            PipelineError: Another process has it.
        """
        if not self._taken:
            self._stack.enter_context(held(self._checkpoint, self._job))
            self._taken = True


def fresh(files: Files, now: float | None = None) -> bool:
    """Did a batch begin or end within five minutes? now: seconds since the epoch."""
    sizes = files.sizes()
    now = time.time() if now is None else now
    for log in ("offsets", "commits"):
        for batch in layout.batches(sizes, log)[-1:]:
            with contextlib.suppress(FileNotFoundError):
                if now - files.touched(f"{log}/{batch}") < FRESH:
                    return True
    return False
