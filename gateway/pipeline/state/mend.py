"""What a job's start does about its state: nothing, or what `repair` finds to do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.errors import PipelineError

from . import damage, repair
from .files import Files
from .whole import Deep

log = logging.getLogger(__name__)


def mend(
    files: Files, job: str, once: Callable[[], object], *, damaged: bool, deep: Deep | None = None
) -> None:
    """Before a query begins. damaged: it ended as its state could not be read; files are looked
    at only then. once: see `repair.replay`.

    Raises PipelineError: it cannot be mended; and what `once` raises.
    """
    again = repair.unfinished(files)
    if damaged:
        done = repair.repair(files, deep)
        if not (done.damage or again):  # else an earlier start took out what was damaged
            raise PipelineError(
                f"{files.where}: the state cannot be read, though no file of it looks damaged; "
                "restore a backup, or begin anew with --fresh"
            )
        again = repair.unfinished(files)  # and what an earlier one has left
        what = (
            f"batches {again[0]} to {again[-1]} are done again" if again else "older files lead on"
        )
        for each in done.damage:
            damage.tell(job, each.file, f"{each.what}; it is in damaged/ now, and {what}")
    if again:
        log.warning("job %s does batches %d to %d again", job, again[0], again[-1])
        repair.replay(files, again, once)
