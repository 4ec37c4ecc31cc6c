"""Keep what a run of `bench.replacement` found, for its table and its plot."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Replacement:
    """One run of a case. Times are in seconds from when the replacement began.

    Attributes:
        case: The name of the case.
        ended_at: When the old member ended; None if it did not.
        joined_at: When the new member began to join; None if there is none.
        hurt: The partitions that the old member had.
        reads: Partition, member, and when the first and the last of some records came to it.
        rebalancing: For each member that was there all the time, when its state was REBALANCING.
        silences: The longest time without a record, by partition, less the producer's interval.
        interval_s: The producer's interval.
    """

    case: str
    interval_s: float
    ended_at: float | None = None
    joined_at: float | None = None
    hurt: list[int] = field(default_factory=list)
    reads: list[tuple[int, int, float, float]] = field(default_factory=list)
    rebalancing: list[tuple[float, float]] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)

    @property
    def hurt_silence_s(self) -> float:
        """Return the longest silence of a partition of the old member; of any in a control run."""
        return max(self.silences[p] for p in self.hurt or range(len(self.silences)))

    @property
    def other_silence_s(self) -> float:
        """Return the longest silence of the other partitions."""
        return max(s for p, s in enumerate(self.silences) if not self.hurt or p not in self.hurt)

    @property
    def rebalancing_s(self) -> float:
        """Return the longest time that a member was REBALANCING."""
        return max((end - begin for begin, end in self.rebalancing), default=0.0)


def read_result(path: Path) -> list[Replacement]:
    """Read the runs of a result."""
    return [Replacement(**each) for each in json.loads(path.read_text())["runs"]]
