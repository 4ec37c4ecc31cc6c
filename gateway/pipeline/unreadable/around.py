"""Reads of a whole topic by Spark, around the records that it cannot read.

Such a read fails by one record after the other. Each time the records that follow it at once are
looked for, and the topic is read in one piece more: a union. What is known is kept for the next
read of the same topic.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.pipeline import topics
from gateway.pipeline.progress import counts
from gateway.pipeline.run.failures import Unreadable, causes, find_unreadable
from gateway.telemetry import catalog

from .log import read_run

log = logging.getLogger(__name__)

T = TypeVar("T")

EARLIEST, LATEST = -2, -1
"""How Spark's options name the begin and the end of a partition."""


@dataclass(slots=True)
class Around:
    """A topic that is read whole, again and again, for one job.

    Attributes:
        job: The job's name.
        topic: The topic's name.
        client: librdkafka's properties of its cluster.
    """

    job: str
    topic: str
    client: Mapping[str, Any]
    _known: topics.Topic | None = None  # the topic that `_runs` are of
    _runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def read(self, load: Callable[[Sequence[Mapping[str, str]]], T]) -> T:
        """Return what is loaded, once that succeeds.

        Args:
            load: Reads the topic whole. It is given the options of each piece, to be united; of
                none where the topic can be read in one.

        Raises:
            Exception: What `load` raises for another reason.
        """
        if self._known is not None:
            now = topics.describe(self.client, self.topic)
            if now.id != self._known.id:
                self._runs.clear()
            self._known = now
        while True:
            pieces = split(self.topic, self._known.partitions, self._runs) if self._known else []
            try:
                return load(pieces)
            except Exception as error:
                found = find_unreadable(causes(error))
                if found is None or found.topic != self.topic or not self._add(found):
                    raise

    def _add(self, found: Unreadable) -> bool:
        """Leave out a record and those that follow it; return whether there is such a record."""
        chunks = list(read_run(self.client, self.topic, found.partition, found.offset))
        if not chunks:
            return False
        self._known = self._known or topics.describe(self.client, self.topic)
        run = (found.offset, chunks[-1][-1].offset + 1)
        self._runs.setdefault(found.partition, []).append(run)
        self._runs[found.partition].sort()
        counts.add(catalog.PIPELINE_UNREADABLE, sum(map(len, chunks)), self.job, self.topic)
        what = "the table of job %s lacks records that Spark cannot read: %s, offsets %d to %d"
        log.warning(what, self.job, f"{self.topic}-{found.partition}", run[0], run[1] - 1)
        return True


def split(
    topic: str, partitions: int, runs: Mapping[int, Sequence[tuple[int, int]]]
) -> list[dict[str, str]]:
    """Return the options of reads that have all records of a topic but those of the runs.

    Args:
        topic: The topic's name.
        partitions: How many it has.
        runs: By partition, in their order: the first offset and the one behind the last.

    Returns:
        One for the whole topic where nothing is left out.
    """
    parts = []
    for partition in range(partitions):
        left = runs.get(partition, ())
        starts = [EARLIEST, *(end for _, end in left)]
        ends = [*(start for start, _ in left), LATEST]
        parts.append(list(zip(starts, ends, strict=True)))
    found = []
    for at in range(max(map(len, parts), default=0)):
        here = {str(number): each[at] for number, each in enumerate(parts) if at < len(each)}
        bounds = ({number: each[end] for number, each in here.items()} for end in (0, 1))
        starts_of, ends_of = (json.dumps({topic: each}) for each in bounds)
        assigned = json.dumps({topic: [int(number) for number in here]})
        found.append({"assign": assigned, "startingOffsets": starts_of, "endingOffsets": ends_of})
    return found
