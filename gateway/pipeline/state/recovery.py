"""What a job's start does about its state: nothing, or what `repair` finds to do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gateway.errors import PipelineError

from . import damage, repair
from .files import Files
from .integrity import ContentCheck

log = logging.getLogger(__name__)


def recover_state(
    files: Files,
    job: str,
    run_once: Callable[[], object],
    *,
    is_damaged: bool,
    check_content: ContentCheck | None = None,
) -> None:
    """Before a query begins. damaged: it ended as its state could not be read; files are looked
    at only then. once: see `repair.replay`.

    Raises PipelineError: it cannot be mended; and what `once` raises.
    """
    again = repair.find_batches_to_replay(files)
    if is_damaged:
        done = repair.repair_state(files, check_content)
        if not (done.damage or again):  # else an earlier start took out what was damaged
            raise PipelineError(
                f"{files.location}: the state cannot be read, though no file of it looks damaged; "
                "restore a backup, or begin anew with --fresh"
            )
        again = repair.find_batches_to_replay(files)  # and what an earlier one has left
        what = (
            f"batches {again[0]} to {again[-1]} are done again" if again else "older files lead on"
        )
        for each in done.damage:
            damage.report_damage(
                job, each.file, f"{each.description}; it is in damaged/ now, and {what}"
            )
    if again:
        log.warning("job %s does batches %d to %d again", job, again[0], again[-1])
        repair.replay_batches(files, again, run_once)
