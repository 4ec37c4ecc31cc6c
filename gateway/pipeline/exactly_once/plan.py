"""Who writes what of an epoch, and whether it was written: the rules of exactly once.

An epoch (a batch of Spark) is shared out over N writers by the hash of each row's key. Each
writer's rows go out in one transaction, together with its `Entry`; an epoch may be interrupted
with some writers done and others not. It is finished by the same rows going to the same writers:
so N must not change within an epoch, and nobody else may write under the query's name. Both stand
in the ledger as the query's `Plan`. A driver takes the query over before its first epoch, and
again to change N:

1. it reads the whole ledger: entries that are not of its checkpoint's batches refuse the
   checkpoint (`verify`), and nothing has been changed;
2. the generation is raised with the old N: a writer that begins from now on by an older
   generation reads that, and refuses;
3. every old writer's transactional id is fenced: one that had begun can no longer commit;
4. the ledger is read and verified again: what it says now stays so. If nothing of this epoch is
   in it, N changes with the next generation; otherwise this epoch is finished with the old N, and
   the next one tries again.

The ledger also names the job's owner: the query (the id of the checkpoint) that writes its rows. A
new checkpoint, of a first run, `--fresh` or a restored copy, becomes the owner before its first
batch; the writers of the owner before are fenced. A query that has written and is not the owner is
an earlier checkpoint of the job that was put back: what it would write, the owner has written since
(`verify_owner`).

So whether the checkpoint may write is decided once, for all writers, before any of them begins. A
writer alone cannot decide it: its own last entry may be older than its siblings', and a writer
without rows in an epoch writes nothing, no entry either (run again it has none again).
Sans-I/O: `Change` tells the shell what to do next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.errors import CheckpointRefused


@dataclass(frozen=True, slots=True)
class WriterPlan:
    """Who writes for a query.

    Attributes:
        generation: Raised by whoever changes the plan.
        writers: The number of writers.
        driver: Who wrote the plan: the process that may write by it.
    """

    generation: int
    writers: int
    driver: str = ""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one writer committed last. mark: of the batch's range of offsets, "" unknown."""

    epoch: int
    writers: int
    digest: str = ""


class PlanSuperseded(Exception):
    """Another driver has changed the plan: what this one started must not write."""


def verify_entries(
    entries: Iterable[LedgerEntry], epoch: int, get_digest: Callable[[int], str]
) -> None:
    """Verify that the batches in the ledger are those of the checkpoint.

    Args:
        entries: The last of every writer, those of former plans included.
        epoch: The batch that is about to be written.
        mark_of: The mark that a batch has in the checkpoint; "" where that has forgotten it.

    Raises:
        CheckpointRefused: They are not, as the checkpoint was put back to another state.
    """
    for entry in entries:
        mark = get_digest(entry.epoch) if entry.digest and entry.epoch <= epoch else ""
        if entry.epoch > epoch or (mark and mark != entry.digest):
            raise CheckpointRefused(
                f"batch {min(epoch, entry.epoch)} of this checkpoint is not the one whose rows "
                f"were written (the ledger is at batch {entry.epoch}): the checkpoint was put back "
                "to another state; start anew with --fresh, or put back the one that wrote them"
            )


def verify_owner(owner: str | None, query_id: str, plan: WriterPlan | None) -> None:
    """Verify that no later checkpoint of the job has written its rows.

    Args:
        owner: The query that the ledger names as the job's; None where it names none.
        query: The query of the checkpoint that is about to write.
        plan: The plan of that query; None where it has never written.

    Raises:
        CheckpointRefused: A later one has.
    """
    if owner in (None, query_id) or plan is None:
        return
    raise CheckpointRefused(
        f"the checkpoint of query {query_id} was replaced: query {owner} has written the job's rows "
        "since; put the checkpoint of that query back, or start anew with --fresh. To go on from "
        "this one, and write once more what was written since, `backup` and `restore` it"
    )


def must_write(entry: LedgerEntry | None, epoch: int, digest: str = "") -> bool:
    """Return whether a writer, whose last entry this is, must still write its rows of `epoch`.

    Raises:
        CheckpointRefused: As of `verify`, which the driver asked for before this writer began.
    """
    if entry is None or entry.epoch < epoch:
        return True
    verify_entries([entry], epoch, lambda _: digest)
    return False


def verify_plan(stored: WriterPlan, expected: WriterPlan) -> None:
    """Raises Superseded if the plan a writer was started by is not the ledger's any more."""
    if stored != expected:
        raise PlanSuperseded(
            f"generation {expected.generation} of the writers was replaced by {stored.generation}"
        )


@dataclass(frozen=True, slots=True)
class PlanChange:
    """What a driver does to become the one who writes, by `wanted` writers.

    Write `closing`, fence the ids of its writers, read the ledger, write `settled(entries)` if it
    is another plan.

    Attributes:
        plan: The ledger's; None of a query that has none yet.
        wanted: The number of writers.
        epoch: The batch that is about to be written.
        driver: Who takes over.
    """

    stored_plan: WriterPlan | None
    writers: int
    epoch: int
    driver_id: str = ""

    @property
    def fencing_plan(self) -> WriterPlan:
        if self.stored_plan is None:
            return WriterPlan(1, self.writers, self.driver_id)
        return WriterPlan(self.stored_plan.generation + 1, self.stored_plan.writers, self.driver_id)

    def choose_plan(self, entries: Iterable[LedgerEntry]) -> WriterPlan:
        """Return the plan for this epoch.

        Args:
            entries: Of all writers, read after those of the old plan were fenced.
        """
        closing = self.fencing_plan
        if closing.writers == self.writers or any(each.epoch >= self.epoch for each in entries):
            return closing
        return WriterPlan(closing.generation + 1, self.writers, self.driver_id)
