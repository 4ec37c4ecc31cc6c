"""Who writes what of an epoch, and whether it was written: the rules of exactly once.

An epoch (a batch of Spark) is shared out over N writers by the hash of each row's key. Each
writer's rows go out in one transaction, together with its `Entry`; an epoch may be interrupted
with some writers done and others not. It is finished by the same rows going to the same writers:
so N must not change within an epoch. It stands in the ledger as the query's `Plan`, and changes
only between epochs, when nobody can still write by the old one:

1. the generation is raised with the old N: a writer that begins from now on by an older
   generation reads that, and refuses;
2. every old writer's transactional id is fenced: one that had begun can no longer commit;
3. the ledger is read. If nothing of this epoch is in it, N changes with the next generation;
   otherwise this epoch is finished with the old N, and the next one tries again.

A writer without rows in an epoch writes nothing, no entry either: run again it has none again.
Sans-I/O: `Change` tells the shell what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import CheckpointRefused


@dataclass(frozen=True, slots=True)
class Plan:
    """generation: raised by whoever changes it; writers: their number."""

    generation: int
    writers: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What one writer committed last. mark: of the batch's range of offsets, "" unknown."""

    epoch: int
    writers: int
    mark: str = ""


class Superseded(Exception):
    """Another driver has changed the plan: what this one started must not write."""


def due(entry: Entry | None, epoch: int, mark: str = "") -> bool:
    """Must the writer, whose last entry this is, still write its rows of `epoch`?

    Raises CheckpointRefused where the ledger knows more than the checkpoint, which then was
    put back to an older state: its batches are not those that were written.
    """
    if entry is None or entry.epoch < epoch:
        return True
    if entry.epoch > epoch or (mark and entry.mark and mark != entry.mark):
        raise CheckpointRefused(
            f"batch {epoch} of this checkpoint is not the one whose rows were written (the ledger "
            f"is at batch {entry.epoch}): the checkpoint was put back to an older state; "
            "start anew with --fresh, or put back the newer one"
        )
    return False


def current(found: Plan, mine: Plan) -> None:
    """Raises Superseded if the plan a writer was started by is not the ledger's any more."""
    if found != mine:
        raise Superseded(
            f"generation {mine.generation} of the writers was replaced by {found.generation}"
        )


def first(wanted: int) -> Plan:
    """The plan of a query that has none yet."""
    return Plan(1, wanted)


@dataclass(frozen=True, slots=True)
class Change:
    """Towards `wanted` writers. Write `closing`, fence the ids of its writers, read their
    entries, write `settled(entries)` if it is another one."""

    plan: Plan
    wanted: int
    epoch: int

    @property
    def closing(self) -> Plan:
        return Plan(self.plan.generation + 1, self.plan.writers)

    def settled(self, entries: Iterable[Entry]) -> Plan:
        """The plan for this epoch. entries: of all old writers, read after they were fenced."""
        if any(entry.epoch >= self.epoch for entry in entries):
            return self.closing
        return Plan(self.closing.generation + 1, self.wanted)
