"""Define what a stream yields: records, and everything about them that must not be hidden.

All are immutable named tuples. `position` is the resume token of where the stream stands after it:
give it to `Gateway.subscribe` to go on from there. The same text is the `id:` of server-sent
events.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from gateway.core.channel.exact_json import parse_json
from gateway.core.token.resume_token import seal_token

__all__ = ["Begin", "End", "Event", "Fault", "Gap", "Position", "Ready", "Record"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and contents, in the order of the record; a name may occur more than once."""


class LazyToken(NamedTuple):
    """Hold a resume token that is written when somebody asks for it, which is rare.

    Attributes:
        text: The token without its view and checksum.
        view_digest: The digest of the view.
    """

    text: bytes
    view_digest: bytes

    def __str__(self) -> str:
        return seal_token(self.text, self.view_digest).decode()


class Record(NamedTuple):
    """Hold one record, exact to the byte.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: The offset.
        timestamp: Milliseconds since 1970, by the producer's or the broker's clock; -1 for none.
        key: The key; None for none.
        value: The value; None for a tombstone, which deletes the key.
        headers: Names and contents.
        mark: What `position` is made from.
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
        """Return `timestamp` in UTC; None if there is none, or if it is past the year 9999."""
        try:
            return None if self.timestamp < 0 else datetime.fromtimestamp(self.timestamp / 1e3, UTC)
        except (OverflowError, ValueError, OSError):
            return None

    @property
    def position(self) -> str:
        """Return the token to resume after this record; it is written when it is asked for.

        If positions come in batches (`Begin.resume` is `batch`), it is the last one before the
        record: records since then would come again. It is empty for a record that did not come from
        a stream.
        """
        return str(self.mark)

    def json(self) -> Any:
        """Return the value as JSON; None for a tombstone.

        Raises:
            ValueError: The value is not JSON.
        """
        return None if self.value is None else parse_json(self.value)

    def header(self, name: str) -> bytes | None:
        """Return the content of the last header of that name; None if there is none."""
        return next((content for other, content in reversed(self.headers) if other == name), None)

    def __repr__(self) -> str:
        fields = zip(self._fields[:-1], self[:-1], strict=True)  # without `mark`
        return f"Record({', '.join(f'{name}={value!r}' for name, value in fields)})"


class Begin(NamedTuple):
    """Report that the stream has begun; always the first event.

    Attributes:
        topics: The topics, in their order.
        partitions: The number of partitions of each topic.
        pending: The topics and partitions that cannot be read yet. Their records are sent when they
            become ready; nothing that is written from now on is lost.
        resume: `exact`, or `batch` if positions are too long to go with every record.
        changed: The position that the stream resumed from was of other filters or fields.
        position: The token of where the stream begins.
    """

    topics: tuple[str, ...]
    partitions: Mapping[str, int]
    pending: tuple[tuple[str, int], ...]
    resume: str
    changed: bool
    position: str


class Gap(NamedTuple):
    """Report records that will not come, because Kafka no longer has them.

    Attributes:
        topic: The topic.
        partition: The partition.
        from_offset: Where the stream stood.
        to_offset: Where it goes on; below `from_offset` only if the log itself went back.
        reason: `retention`, `skipped`, `truncated`, `recreated`, `compacted`, `corrupt` or
            `too-large`.
        position: The token to go on with after the gap.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    reason: str
    position: str


class Ready(NamedTuple):
    """Report that a partition can be read (again), from `offset` on.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: The offset.
        approximate: The start was found by time and not by offset; older records may come, too.
        position: The token of where the stream stands.
    """

    topic: str
    partition: int
    offset: int
    approximate: bool
    position: str


class Fault(NamedTuple):
    """Report that a partition cannot be read for now; the stream goes on by itself.

    Attributes:
        topic: The topic.
        partition: The partition.
        code: The cause as a word, such as `access-denied`.
        message: The cause as a sentence.
        position: The token of where the stream stands.
    """

    topic: str
    partition: int
    code: str
    message: str
    position: str


class Position(NamedTuple):
    """Report that the position moved past records that the stream does not show.

    Attributes:
        position: The token, to be kept in place of the last one.
    """

    position: str


class End(NamedTuple):
    """Report that the stream has ended; always the last event.

    Attributes:
        reason: `until` if everything that was asked for came. Otherwise the stream was cut short:
            `closed` with its gateway, `offset-out-of-range` because the topic's settings say so, or
            `error`.
        position: The token of where the stream ended.
    """

    reason: str
    position: str


Event: TypeAlias = Record | Begin | Gap | Ready | Fault | Position | End
"""What `Stream.events` yields."""
