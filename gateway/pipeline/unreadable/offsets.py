"""The offsets of a checkpoint, edited so that no batch has a record that Spark cannot read.

Only the batch that was begun and not finished is changed: none of its rows were written, because
its records are all read before the first row is. Its start is where the batch before it ended, so
that one's offsets are changed too. They are kept as they were in `recreated/`, because the ledger
knows batches by them, and in `unreadable/<batch>` is where that batch really ended: who reads its
records again, or does it again, takes that. Each step may be done twice, as a crash may ask for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import (
    RECREATED_DIRECTORY,
    UNREADABLE_DIRECTORY,
    Checkpoint,
    Offsets,
    Sources,
    format_offsets,
    parse_offsets,
)
from gateway.pipeline.state.files import Files, discard_state


class PartitionRange(NamedTuple):
    """What a batch reads of one partition by one source.

    Attributes:
        line: Of the source, in the offsets of a batch; from 0.
        name: Of the input.
        topic: The topic's name.
        partition: The number of the partition.
        start: The first offset.
        end: The offset behind the last one.
    """

    line: int
    input_name: str
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """The batch that a query has begun and not finished. The query must not run.

    Attributes:
        held: The files of the checkpoint.
        checkpoint: The same, as it is read.
        sources: Which inputs the sources are of.
        number: The batch's.
    """

    files: Files
    checkpoint: Checkpoint
    sources: Sources
    number: int

    def find_ranges(self, topic: str, partition: int) -> list[PartitionRange]:
        """Return what it reads of a partition, by each source whose topic has this name."""
        place = (topic, partition)
        return [each for each in self.list_ranges() if (each.topic, each.partition) == place]

    def list_ranges(self) -> list[PartitionRange]:
        """Return what it reads of each partition, by each source."""
        batch = self.checkpoint.read_batch(self.number)
        found = []
        for line, (name, end) in enumerate(zip(self.sources.lines, batch.end, strict=True)):
            follows = self.number and batch.start[line]
            starts = batch.start[line] if follows else self._read_initial_offsets(line)
            found += [
                PartitionRange(line, name, *place, starts.get(place, 0), offset)
                for place, offset in end.items()
            ]
        return found

    def truncate(self, line: int, topic: str, partition: int, offset: int) -> None:
        """Let it end before an offset."""
        name = f"offsets/{self.number}"
        _write_offset(self.files, name, line, topic, partition, offset)
        # What it wrote of its state was made of other records.
        discard_state(self.files, self.number)

    def move_start(self, line: int, topic: str, partition: int, offset: int) -> None:
        """Let it start at a later offset, and end there at the earliest."""
        # The end first: a start behind the end would be told by Spark as lost data.
        for number in range(self.number, (self.checkpoint.read_last_planned() or 0) + 1):
            name = f"offsets/{number}"
            if _read_offset(self.files, name, line, topic, partition) < offset:
                _write_offset(self.files, name, line, topic, partition, offset)
        if self._continues_previous(line):
            before = self.number - 1
            _store_real_end(self.files, before, line, topic, partition, offset)
            _write_offset(self.files, f"offsets/{before}", line, topic, partition, offset)
        else:
            starts = self._read_initial_offsets(line) | {(topic, partition): offset}
            write_initial_offsets(self.files, self.sources.find_directory(line), starts)
        # What it wrote of its state was made of other records.
        discard_state(self.files, self.number)

    def _read_initial_offsets(self, line: int) -> Offsets:
        """Return where a source starts of which no batch before this one had offsets."""
        directory, starts = (
            self.sources.find_directory(line),
            self.checkpoint.read_initial_offsets(),
        )
        if directory >= len(starts):
            what = (
                f"{self.files.location} has no sources/{directory}/0, where its first batch starts"
            )
            raise PipelineError(f"{what}; start anew with --fresh")
        return starts[directory]

    def _continues_previous(self, line: int) -> bool:
        """Return whether the start of a source is where the batch before ended."""
        return self.number > 0 and bool(self.checkpoint.read_batch(self.number).start[line])


def find_unfinished_batch(
    files: Files, checkpoint: Checkpoint, sources: Sources
) -> UnfinishedBatch | None:
    """Return the first batch of a checkpoint that is begun and not finished, if there is one."""
    done, planned = checkpoint.read_last_committed(), checkpoint.read_last_planned()
    number = 0 if done is None else done + 1
    if planned is None or planned < number:
        return None
    return UnfinishedBatch(files, checkpoint, sources, number)


def switch_ends(files: Files, number: int, *, to_real: bool) -> None:
    """Let the offsets of a batch say where it really ended, or where the next one starts.

    Args:
        held: The files of the checkpoint.
        number: Of a batch; nothing is done where both are the same.
        real: Where it ended.
    """
    if (kept := _read_edit(files, number)) is None:
        return
    for line, topics in enumerate(kept["ends" if to_real else "starts"]):
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                _write_offset(files, f"offsets/{number}", line, topic, int(partition), offset)


def restore_starts(files: Files) -> None:
    """Let the offsets of each batch say where the next one starts.

    A process that is killed while a batch is done again may leave them as `use_real_ends` set them.

    Args:
        held: The files of the checkpoint. Its query must not run.
    """
    names = files.list_sizes()
    for name in names:
        folder, _, number = name.partition("/")
        if folder == UNREADABLE_DIRECTORY and f"offsets/{number}" in names:
            switch_ends(files, int(number), to_real=False)


def forget_ends(files: Files, number: int, line: int) -> None:
    """Let a batch end where its offsets say, as the topic of a source was recreated."""
    if (kept := _read_edit(files, number)) is None:
        return
    kept["ends"][line] = {}
    kept["starts"][line] = {}
    _write_edit(files, number, kept)


def is_rewound(files: Files, number: int) -> bool:
    """Return whether the records of a batch may be gone, as a topic of it was recreated since.

    Its offsets were set back then, or emptied before the batch was done.
    """
    try:
        before = files.read(f"{RECREATED_DIRECTORY}/{number}").decode().splitlines()[2:]
    except FileNotFoundError:
        return False
    now = files.read(f"offsets/{number}").decode().splitlines()[2:]
    return any(
        parse_offsets(line).get(place, 0) < offset
        for line, kept in zip(now, before, strict=True)
        for place, offset in parse_offsets(kept).items()
    )


def _store_real_end(
    files: Files, number: int, line: int, topic: str, partition: int, offset: int
) -> None:
    """Note where a batch really ended, before its offsets are changed."""
    name = f"offsets/{number}"
    text = files.read(name)
    sizes = files.list_sizes()
    if f"{RECREATED_DIRECTORY}/{number}" not in sizes:
        files.write(f"{RECREATED_DIRECTORY}/{number}", text)
    count = len(text.decode().splitlines()) - 2
    kept = _read_edit(files, number) or {
        "ends": [{} for _ in range(count)],
        "starts": [{} for _ in range(count)],
    }
    ends = kept["ends"][line].setdefault(topic, {})
    if str(partition) not in ends:
        ends[str(partition)] = _read_offset(files, name, line, topic, partition)
    kept["starts"][line].setdefault(topic, {})[str(partition)] = offset
    _write_edit(files, number, kept)
    for each in sizes:
        folder, _, forgotten = each.partition("/")
        if (
            folder in (UNREADABLE_DIRECTORY, RECREATED_DIRECTORY)
            and f"offsets/{forgotten}" not in sizes
        ):
            files.remove(each)


def _read_edit(files: Files, number: int) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(files.read(f"{UNREADABLE_DIRECTORY}/{number}"))
    except FileNotFoundError:
        return None
    return found


def _write_edit(files: Files, number: int, edit: Mapping[str, Any]) -> None:
    files.write(f"{UNREADABLE_DIRECTORY}/{number}", json.dumps(edit).encode())


def _read_offset(files: Files, name: str, line: int, topic: str, partition: int) -> int:
    text = files.read(name).decode().splitlines()[2 + line]
    found = json.loads(text)[topic] if text.startswith("{") else {}
    return int(found.get(str(partition), 0))


def _write_offset(
    files: Files, name: str, line: int, topic: str, partition: int, offset: int
) -> None:
    """Change one offset of a source. Its line must have the topic."""
    lines = files.read(name).decode().splitlines()
    lines[2 + line] = _replace_offset(lines[2 + line], topic, partition, offset)
    files.write(name, "\n".join(lines).encode())


def write_initial_offsets(files: Files, directory: int, offsets: Offsets) -> None:
    """Change where the first batch starts.

    Args:
        held: The files of the checkpoint.
        directory: Of a source, as of `Sources.directory`.
        offsets: Of all its partitions.
    """
    name = f"sources/{directory}/0"
    text = files.read(name).decode()
    files.write(name, f"{text[: text.index('{')]}{format_offsets(offsets)}".encode())


def _replace_offset(text: str, topic: str, partition: int, offset: int) -> str:
    topics = json.loads(text)
    topics[topic][str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))
