"""Decide which writer writes which rows of an epoch, and whether it has written them already.

An epoch (a batch of Spark) is divided among N writers by the hash of each row's key. Each writer
writes its rows and its `LedgerEntry` in one transaction. An epoch may be interrupted when some
writers have committed and others have not. It is then finished by giving the same rows to the same
writers. So N must not change within an epoch, and no other process may write under the query's
name. The query's `WriterPlan` in the ledger ensures both. Nor may the settings change that the rows
and their keys depend on: each entry has digests of them (`verify_settings`). A driver takes the
query over before its first epoch, and again to change N:

1. It reads the whole ledger, without waiting for open transactions: that of a killed process stays
   open until step 3. If the entries are not of its checkpoint's batches, the checkpoint is refused
   (`verify_entries`), or the job if its settings changed, and nothing has been changed.
2. It writes the plan with the next generation and the old N. A writer of an older generation that
   begins from now on reads this plan and stops.
3. It fences the transactional id of every old writer. A writer that had begun can no longer commit.
4. It reads and verifies the ledger again. Nobody can change the entries any more. If none is of
   this epoch, N changes to the wanted number. Otherwise this epoch is finished with the N of its
   entries, and the change is tried again in the next epoch. That N may be another one than the
   plan's: a process that runs by a copy of the checkpoint may have finished this epoch and changed
   the plan for the next one. If N changes, the plan is written with the next generation.

The ledger also names the job's owner: the query (the id of the checkpoint) that writes its rows. A
new checkpoint (of a first run, of `--fresh` or of a restored copy) becomes the owner before its
first batch, and the writers of the previous owner are fenced. A checkpoint that was begun because
none was found is not that of a first run if there is an owner, and is refused: it would write all
rows again. A query that has written and is not the owner is an earlier checkpoint of the job that
was put back. The owner has already written the rows of this query (`verify_owner`).

So whether a checkpoint may write is decided once, for all writers, before any of them begins. A
writer alone cannot decide it: its own last entry may be older than those of the other writers, and
a writer without rows in an epoch writes nothing, not even an entry (if the epoch is repeated, it
has no rows again). This module does no I/O: `driver` takes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.errors import CheckpointRefused
from gateway.pipeline.checkpoint.job_checkpoint import INPUT_PREFIX


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """The ledger's record of the driver that writes for a query, and the number of its writers.

    Attributes:
        driver: The id of the driver that wrote the plan. Only its workers may write by the plan.
    """

    generation: int
    writers: int
    driver: str = ""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The ledger's record of the last epoch that one writer committed.

    Attributes:
        writers: The number of writers of the plan that the epoch was written by.
        digest: `Checkpoint.compute_digest` of the epoch's offsets, or "" if it is unknown.
        settings: `compute_key_digests` of the job that wrote the epoch, or empty if unknown.
    """

    epoch: int
    writers: int
    digest: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)


class PlanSuperseded(Exception):
    """Another driver has changed the plan, so writers of the old plan must not write any more."""


def verify_entries(
    entries: Collection[LedgerEntry], epoch: int, get_digest: Callable[[int], str]
) -> None:
    """Verify that the batches in the ledger are those of the checkpoint.

    Args:
        entries: The last entry of every writer, including the writers of former plans.
        get_digest: Returns the digest of a batch in the checkpoint, or "" if the checkpoint no
            longer has the batch.

    Raises:
        CheckpointRefused: They are other batches, because the checkpoint was put back to another
            state. Or the batch was divided among two numbers of writers, as earlier versions of
            this module could do, so that nobody can say which rows are missing.
    """
    for entry in entries:
        # An entry of this very epoch is normal: the epoch was interrupted, or its commit file is
        # missing. An entry of a later one shows that the checkpoint is older than the ledger.
        digest = get_digest(entry.epoch) if entry.digest and entry.epoch <= epoch else ""
        if entry.epoch > epoch or (digest and digest != entry.digest):
            raise CheckpointRefused(
                f"batch {min(epoch, entry.epoch)} of this checkpoint is not the one whose rows "
                f"were written (the ledger is at batch {entry.epoch}): the checkpoint was put back "
                "to another state; start again with --fresh, or put back the one that wrote them"
            )
    if len(counts := {entry.writers for entry in entries if entry.epoch == epoch}) > 1:
        raise CheckpointRefused(
            f"rows of batch {epoch} were written by {min(counts)} and by {max(counts)} writers, so "
            "some may be there twice and others not at all; start again with --fresh"
        )


def verify_settings(
    entries: Iterable[LedgerEntry], epoch: int, settings: Mapping[str, str]
) -> None:
    """Verify that an epoch that some writers have committed gets the same rows and keys again.

    With other keys, a row goes to another writer. It is lost if only that one has committed, and
    comes twice if only the writer before has. Nor may the inputs change if all have committed: a
    record that was invalid then and is a row by now would be lost.

    Args:
        settings: `compute_key_digests` of the job. Settings that the entries do not have are new
            with this version of the gateway, and are not compared.

    Raises:
        CheckpointRefused: Settings have changed.
    """
    begun = [entry for entry in entries if entry.epoch == epoch]
    changed = {
        name
        for entry in begun
        for name, digest in entry.settings.items()
        if settings.get(name) != digest
        and (len(begun) < entry.writers or name.startswith(INPUT_PREFIX))
    }
    if changed:
        raise CheckpointRefused(
            f"batch {epoch} was interrupted after {len(begun)} of {begun[0].writers} writers had "
            f"committed, and would be finished with other rows, as these were changed since: "
            f"{', '.join(sorted(changed))}; take that back (columns of a former schema: by "
            "fields) until the batch is finished, then change it again"
        )


def verify_owner(
    owner: str | None, query_id: str, plan: WriterPlan | None, location: str, *, is_first: bool
) -> None:
    """Raise CheckpointRefused if another checkpoint of the job has written its rows.

    That is a later one, or an earlier one that is missing where `is_first` (as of `Checkpoint`).
    """
    if owner in (None, query_id) or (plan is None and not is_first):
        return
    if plan is None:
        raise CheckpointRefused(
            f"query {owner} has written the job's rows, and its checkpoint is missing, so that "
            f"{location} was begun: mount or put back the checkpoint of that query there (see "
            "`pipelines.checkpoints`), or start again with --fresh, which writes rows again"
        )
    raise CheckpointRefused(
        f"the checkpoint of query {query_id} was replaced: query {owner} has written the job's "
        "rows since; put the checkpoint of that query back, or start again with --fresh. To "
        "continue from this one, and write once more what was written since, `backup` and "
        "`restore` it"
    )


def must_write(entry: LedgerEntry | None, epoch: int, writers: int, digest: str = "") -> bool:
    """Return whether a writer must still write an epoch; raise CheckpointRefused as a safeguard."""
    if entry is None or entry.epoch < epoch:
        return True
    verify_entries([entry, LedgerEntry(epoch, writers)], epoch, lambda _: digest)
    return False


def verify_plan(stored: WriterPlan, expected: WriterPlan) -> None:
    """Raise PlanSuperseded if the ledger has another plan than a writer was started with."""
    if stored != expected:
        raise PlanSuperseded(
            f"generation {expected.generation} of the writers was replaced by {stored.generation}"
        )


def build_fencing_plan(stored: WriterPlan | None, writers: int, driver_id: str) -> WriterPlan:
    """Return the plan to write before the old writers are fenced: theirs, one generation on."""
    if stored is None:
        return WriterPlan(1, writers, driver_id)
    return WriterPlan(stored.generation + 1, stored.writers, driver_id)


def choose_plan(
    fencing_plan: WriterPlan, entries: Iterable[LedgerEntry], epoch: int, writers: int
) -> WriterPlan:
    """Return the plan for an epoch, with the wanted number of writers if that may change.

    The entries of all writers must be read after those of the old plan were fenced, and be verified
    by `verify_entries`.
    """
    # Once one writer has committed rows of this epoch, the others must get the rows that its number
    # of writers gives them. Otherwise rows would be lost or repeated. The entries say that number,
    # not the plan, which may already have been changed for a later epoch.
    writers = next((entry.writers for entry in entries if entry.epoch == epoch), writers)
    if fencing_plan.writers == writers:
        return fencing_plan
    return WriterPlan(fencing_plan.generation + 1, writers, fencing_plan.driver)
