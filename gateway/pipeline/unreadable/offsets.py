"""Edit the offsets of a checkpoint so that no batch has a record that Spark cannot read.

Only the unfinished batch is changed. None of its rows were written, because all of its records are
read before the first row is written. A batch starts where the batch before it ended, so a later
start means a change of the previous batch's offsets. The original offsets are kept in `recreated/`,
because the ledger knows batches by their digest. The real end of the previous batch is stored in
`unreadable/<batch>`, for side outputs and repairs, which read its records again. Every step may be
repeated, for example after a crash. No query may run on the checkpoint meanwhile.
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
    """The offsets that a batch reads of a partition by the source of a line, from 0."""

    line: int
    input_name: str
    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """The batch that a query has begun and not finished.

    `find_unfinished_batch` creates it while the query does not run. The methods read the files at
    every call, so they see what earlier calls have changed.
    """

    files: Files
    checkpoint: Checkpoint
    sources: Sources
    number: int

    def find_ranges(self, topic: str, partition: int) -> list[PartitionRange]:
        ranges = self.list_ranges()
        return [each for each in ranges if (each.topic, each.partition) == (topic, partition)]

    def list_ranges(self) -> list[PartitionRange]:
        batch = self.checkpoint.read_batch(self.number)
        ranges = []
        for line, (name, end) in enumerate(zip(self.sources.lines, batch.end, strict=True)):
            continues_previous = self.number and batch.start[line]
            starts = batch.start[line] if continues_previous else self._read_initial_offsets(line)
            ranges += [
                PartitionRange(line, name, *place, starts.get(place, 0), offset)
                for place, offset in end.items()
            ]
        return ranges

    def truncate(self, line: int, topic: str, partition: int, offset: int) -> None:
        name = f"offsets/{self.number}"
        _write_offset(self.files, name, line, topic, partition, offset)
        # The state that the failed batch has written was made of other records.
        discard_state(self.files, self.number)

    def move_start(self, line: int, topic: str, partition: int, offset: int) -> None:
        """Set the start of the batch in one partition to a later offset, and the end if needed."""
        # The ends are written first. After a crash in between, a start behind the end would make
        # Spark report lost data.
        for number in range(self.number, (self.checkpoint.read_last_planned() or 0) + 1):
            name = f"offsets/{number}"
            if _read_offset(self.files, name, line, topic, partition) < offset:
                _write_offset(self.files, name, line, topic, partition, offset)
        if self._continues_previous(line):
            previous = self.number - 1
            _store_real_end(self.files, previous, line, topic, partition, offset)
            _write_offset(self.files, f"offsets/{previous}", line, topic, partition, offset)
        else:
            starts = self._read_initial_offsets(line) | {(topic, partition): offset}
            write_initial_offsets(self.files, self.sources.find_directory(line), starts)
        # The state that the failed batch has written was made of other records.
        discard_state(self.files, self.number)

    def _read_initial_offsets(self, line: int) -> Offsets:
        """Return the start of a source of which no batch before this one had offsets."""
        directory = self.sources.find_directory(line)
        starts = self.checkpoint.read_initial_offsets()
        if directory >= len(starts):
            file = f"sources/{directory}/0"
            problem = f"{self.files.location} has no {file}, where its first batch starts"
            raise PipelineError(f"{problem}; start again with --fresh")
        return starts[directory]

    def _continues_previous(self, line: int) -> bool:
        return self.number > 0 and bool(self.checkpoint.read_batch(self.number).start[line])


def find_unfinished_batch(
    files: Files, checkpoint: Checkpoint, sources: Sources
) -> UnfinishedBatch | None:
    committed, planned = checkpoint.read_last_committed(), checkpoint.read_last_planned()
    number = 0 if committed is None else committed + 1
    if planned is None or planned < number:
        return None
    return UnfinishedBatch(files, checkpoint, sources, number)


def switch_ends(files: Files, number: int, *, to_real: bool) -> None:
    """Set the offsets of a batch to its real ends, or to the starts of the next batch."""
    if (edit := _read_edit(files, number)) is None:
        return
    for line, topics in enumerate(edit["ends" if to_real else "starts"]):
        for topic, partitions in topics.items():
            for partition, offset in partitions.items():
                _write_offset(files, f"offsets/{number}", line, topic, int(partition), offset)


def restore_starts(files: Files) -> None:
    """Set the offsets of every edited batch to the starts of the next batch.

    A process that was killed during a replay may have left the real ends in the files.
    """
    names = files.list_sizes()
    for name in names:
        directory, _, number = name.partition("/")
        if directory == UNREADABLE_DIRECTORY and f"offsets/{number}" in names:
            switch_ends(files, int(number), to_real=False)


def forget_ends(files: Files, number: int, line: int) -> None:
    """Remove the stored real ends of a source from a batch, because its topic was recreated."""
    if (edit := _read_edit(files, number)) is None:
        return
    edit["ends"][line] = {}
    edit["starts"][line] = {}
    _write_edit(files, number, edit)


def is_rewound(files: Files, number: int) -> bool:
    """Return whether the records of a batch may be gone, because a topic was recreated since.

    The end offsets of such a batch were set back or removed, so they are less than the original
    ones. An edit because of records that Spark cannot read only makes them greater.
    """
    try:
        original = files.read(f"{RECREATED_DIRECTORY}/{number}").decode().splitlines()[2:]
    except FileNotFoundError:
        return False
    current = files.read(f"offsets/{number}").decode().splitlines()[2:]
    return any(
        parse_offsets(current_line).get(place, 0) < offset
        for current_line, original_line in zip(current, original, strict=True)
        for place, offset in parse_offsets(original_line).items()
    )


def _store_real_end(
    files: Files, number: int, line: int, topic: str, partition: int, offset: int
) -> None:
    """Store the real end of a batch, before it is changed to `offset`."""
    name = f"offsets/{number}"
    text = files.read(name)
    sizes = files.list_sizes()
    if f"{RECREATED_DIRECTORY}/{number}" not in sizes:
        files.write(f"{RECREATED_DIRECTORY}/{number}", text)
    count = len(text.decode().splitlines()) - 2
    edit = _read_edit(files, number) or {
        "ends": [{} for _ in range(count)],
        "starts": [{} for _ in range(count)],
    }
    ends = edit["ends"][line].setdefault(topic, {})
    # Only the first edit of a partition sees the real end. Later ones see what it has written.
    if str(partition) not in ends:
        ends[str(partition)] = _read_offset(files, name, line, topic, partition)
    edit["starts"][line].setdefault(topic, {})[str(partition)] = offset
    _write_edit(files, number, edit)
    # Files of batches whose offsets Spark has removed are of no more use.
    for stored in sizes:
        directory, _, batch = stored.partition("/")
        if (
            directory in (UNREADABLE_DIRECTORY, RECREATED_DIRECTORY)
            and f"offsets/{batch}" not in sizes
        ):
            files.remove(stored)


def _read_edit(files: Files, number: int) -> dict[str, Any] | None:
    try:
        edit: dict[str, Any] = json.loads(files.read(f"{UNREADABLE_DIRECTORY}/{number}"))
    except FileNotFoundError:
        return None
    return edit


def _write_edit(files: Files, number: int, edit: Mapping[str, Any]) -> None:
    files.write(f"{UNREADABLE_DIRECTORY}/{number}", json.dumps(edit).encode())


def _read_offset(files: Files, name: str, line: int, topic: str, partition: int) -> int:
    """Return one offset of a source, 0 if the file has none of it."""
    # The version and the JSON of the watermark are before the lines of the sources.
    text = files.read(name).decode().splitlines()[2 + line]
    offsets = json.loads(text)[topic] if text.startswith("{") else {}
    return int(offsets.get(str(partition), 0))


def _write_offset(
    files: Files, name: str, line: int, topic: str, partition: int, offset: int
) -> None:
    """Change one offset of a source, whose line must have the topic."""
    lines = files.read(name).decode().splitlines()
    lines[2 + line] = _replace_offset(lines[2 + line], topic, partition, offset)
    files.write(name, "\n".join(lines).encode())


def write_initial_offsets(files: Files, directory: int, offsets: Offsets) -> None:
    """Change the start offsets of the first batch, in the directory of `Sources.find_directory`."""
    name = f"sources/{directory}/0"
    text = files.read(name).decode()
    files.write(name, f"{text[: text.index('{')]}{format_offsets(offsets)}".encode())


def _replace_offset(text: str, topic: str, partition: int, offset: int) -> str:
    topics = json.loads(text)
    topics[topic][str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))
