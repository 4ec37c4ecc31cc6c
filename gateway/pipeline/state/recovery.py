"""Repair the state of a job before its query starts, if that is necessary."""

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
    """Repair damaged state, and replay the batches that an earlier or this repair rolled back.

    The query must not run.

    Args:
        is_damaged: Whether the query ended because its state could not be read. The files are only
            inspected in this case.
    """
    batches = repair.find_batches_to_replay(files)
    if is_damaged:
        result = repair.repair_state(files, check_content)
        # If batches are left to replay, an earlier start has moved the damaged files already.
        if not (result.damage or batches):
            raise PipelineError(
                f"{files.location}: the state cannot be read, though no file of it looks damaged; "
                "restore a backup, or start again with --fresh"
            )
        # The repair may have rolled back more batches than an earlier one had left.
        batches = repair.find_batches_to_replay(files)
        outcome = (
            f"batches {batches[0]} to {batches[-1]} are replayed"
            if batches
            else "older files are used"
        )
        for found in result.damage:
            damage.report_damage(
                job, found.file, f"{found.description}; it is in damaged/ now, and {outcome}"
            )
    if batches:
        log.warning("job %s replays batches %d to %d", job, batches[0], batches[-1])
        repair.replay_batches(files, batches, run_once)
