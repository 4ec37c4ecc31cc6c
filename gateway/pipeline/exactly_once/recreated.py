"""Input topics that were deleted and made anew: their positions are of records that are gone.

Spark knows topics by their names, so it would pass over the records of the new topic up to the old
position. `topics.json` beside the checkpoint's own files has the id of each input's topic. Where it
is another one by now, the last offsets of that input are set to the new topic's begin before the
query starts; a batch that was interrupted then reads nothing of it. The first batch tells the gap
and writes the new ids, so that a crash before that does all of it again. The offsets as they were
are kept in `recreated/`: the ledger knows batches by them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.pipeline.checkpoint.checkpoint import RECREATED, Checkpoint, Sources
from gateway.pipeline.state.files import Files, discard_state
from gateway.pipeline.topics import Topic
from gateway.pipeline.unreadable.offsets import forget_ends

from .gaps import Gap

FILE = "topics.json"


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a query that is about to start has still to tell.

    Attributes:
        held: The files of its checkpoint.
        topics: By input.
        gaps: Of the inputs whose topics were made anew.
    """

    held: Files
    topics: Mapping[str, Topic]
    gaps: Mapping[str, Sequence[Gap]]


def find(held: Files, topics: Mapping[str, Topic]) -> list[str]:
    """Return the inputs whose topics were made anew since the checkpoint's last batch.

    Args:
        held: The files of the checkpoint.
        topics: By input.
    """
    try:
        known = json.loads(held.read(FILE))
    except FileNotFoundError:
        return []
    return [name for name, topic in topics.items() if known.get(name, topic.id) != topic.id]


def remember(held: Files, topics: Mapping[str, Topic]) -> None:
    """Write the ids of the topics that the batches from now on read."""
    ids = {name: topic.id for name, topic in topics.items()}
    try:
        if json.loads(held.read(FILE)) == ids:
            return
    except FileNotFoundError:
        pass
    held.write(FILE, json.dumps(ids, indent=1).encode())


def rewind(
    held: Files, checkpoint: Checkpoint, sources: Sources, name: str, topic: Topic
) -> list[Gap]:
    """Let an input be read from its topic's begin; before the query starts, and as often as one
    likes until it has.

    Returns:
        A gap of each partition: it ends before it begins, as the new log does.
    """
    done = checkpoint.committed()
    if done is None:
        return []
    before: dict[str, int] = {}
    begin = json.dumps({topic.name: {str(each): 0 for each in range(topic.partitions)}})
    for number in {done, checkpoint.planned() or done}:
        saved, text = f"{RECREATED}/{number}", held.read(f"offsets/{number}")
        if saved not in held.sizes():
            held.write(saved, text)
        lines, was = text.decode().splitlines(), held.read(saved).decode().splitlines()
        for at, source in enumerate(sources.lines, 2):
            if source == name:
                lines[at] = begin
                moved = forget_ends(held, number, at - 2)
                if number == done and was[at].startswith("{"):
                    before |= json.loads(was[at])[topic.name] | moved.get(topic.name, {})
        held.write(f"offsets/{number}", "\n".join(lines).encode())
    discard_state(held, done + 1)  # an interrupted batch made it of the records that are gone
    return [Gap(topic.name, int(each), offset, 0) for each, offset in sorted(before.items())]
