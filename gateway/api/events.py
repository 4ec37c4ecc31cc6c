"""What a stream tells a program: records, and everything about them that must not be hidden.

All are immutable tuples with names. `position` is the resume token of the place after it: give
it to `Gateway.subscribe` to go on from there. The same text is the `id:` of server-sent events.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import orjson

from gateway.core.token.resume_token import seal_token

__all__ = ["Begin", "End", "Event", "Fault", "Gap", "Position", "Ready", "Record"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and contents, in the order of the record; a name may come more than once."""


class LazyToken(NamedTuple):
    """A token whose checksum was not written yet: most of them nobody asks for."""

    text: bytes
    view: bytes

    def __str__(self) -> str:
        return seal_token(self.text, self.view).decode()


class Record(NamedTuple):
    """One record, exact to the byte.

    timestamp: in milliseconds of the epoch, by the producer's clock or the broker's; -1 for none.
    key:       None for none. value: None for a tombstone: the key is deleted.
    mark:      what `position` is made of.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    mark: LazyToken | str = ""

    @property
    def time(self) -> datetime | None:
        """`timestamp` in UTC; None for none, or past the year 9999."""
        try:
            return None if self.timestamp < 0 else datetime.fromtimestamp(self.timestamp / 1e3, UTC)
        except (OverflowError, ValueError, OSError):
            return None

    @property
    def position(self) -> str:
        """The token to resume after this record; written when it is asked for.

        Where positions come in batches (`Begin.resume` is `batch`) it is the last one before, and
        what came since then would come again. Empty for a record of another making.
        """
        return str(self.mark)

    def json(self) -> Any:
        """The value as JSON; None for a tombstone. Raises ValueError for what is no JSON."""
        return None if self.value is None else orjson.loads(self.value)

    def header(self, name: str) -> bytes | None:
        """The content of the last header of that name; None if there is none."""
        return next((content for each, content in reversed(self.headers) if each == name), None)

    def __repr__(self) -> str:
        told = zip(self._fields[:-1], self[:-1], strict=True)
        return f"Record({', '.join(f'{name}={value!r}' for name, value in told)})"


class Begin(NamedTuple):
    """The stream has begun; always the first.

    topics:     in their order. partitions: how many each has.
    pending:    topics and partitions that cannot be read yet; they come as they become ready,
                with nothing lost since now.
    resume:     `exact`, or `batch` where positions are too long to go with every record.
    changed:    the position it resumed from was of other filters or fields.
    """

    topics: tuple[str, ...]
    partitions: Mapping[str, int]
    pending: tuple[tuple[str, int], ...]
    resume: str
    changed: bool
    position: str


class Gap(NamedTuple):
    """Records that will not come: Kafka has them no more.

    from_offset: where the stream stood. to_offset: where it goes on; below `from_offset` only
    when the log itself went back. reason: `retention`, `skipped`, `truncated`, `recreated`,
    `compacted` or `corrupt`.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    reason: str
    position: str


class Ready(NamedTuple):
    """A partition can be read (again), from `offset` on.

    approximate: the start was found by time, not by offset; older records may come too.
    """

    topic: str
    partition: int
    offset: int
    approximate: bool
    position: str


class Fault(NamedTuple):
    """A partition cannot be read for now; the stream goes on by itself.

    code: a word, such as `access-denied`. message: for people.
    """

    topic: str
    partition: int
    code: str
    message: str
    position: str


class Position(NamedTuple):
    """No record for this stream, but its position moved: keep this one in its place."""

    position: str


class End(NamedTuple):
    """The last. reason: `until`: all that was asked for came. Else it was cut short: `closed`
    with its gateway, `offset-out-of-range` where the topic's settings say so, `error`."""

    reason: str
    position: str


Event: TypeAlias = Record | Begin | Gap | Ready | Fault | Position | End
"""What `Stream.events` yields."""
