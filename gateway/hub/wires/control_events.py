"""Define the events that are not records: their names, data and JSON Schema, for all wires.

To add one, write a subclass of `ControlEvent` and enter it in `CONTROL_EVENTS`, from which
documents describe it. If it is the event of an entry, write a subclass of `EntryEvent` and enter it
in `ENTRY_EVENTS`, too: then all wires send it in the place of the entry. An event for one client is
sent by `Client.send_event`.

One restart of a broker makes thousands of partitions ready again, which would be as many `ready`
events to every client of them. Events that follow each other without a record or another event
between them are one `partitions-ready` event (or `partitions-error`) for each `MAX_PARTITIONS` of
them. One partition alone keeps its `ready` or `error`.

A joined event names each partition once, with the last that its run says about it: its groups have
no order in time, so a partition in two of them would end in either state. The heads of `ready` and
`error` remember their entries, and are joined when the chunk is rendered, once for all clients that
share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.client.terms import UNSENT_END_REASONS, EndReason
from gateway.core.log.record import (
    Fault,
    Gap,
    GapReason,
    Ready,
    SnapshotEnd,
    StreamItem,
    TopicPartition,
)
from gateway.formats.event import (
    COUNT_SCHEMA,
    INTEGER_SCHEMA,
    PARTITION_MEMBERS,
    TEXT_SCHEMA,
    Schema,
    build_object_schema,
    make_nullable,
)

ItemT = TypeVar("ItemT")

POSITION_REFUSED_GAP: dict[str, Any] = {
    "topic": None, "partition": None, "from": None, "to": None, "reason": GapReason.POSITION_REFUSED
}  # fmt: skip
"""The data of the `gap` for a client whose resume token could not be used."""


class ControlEvent:
    """An event that is no record. There is one instance, without state.

    Attributes:
        summary: When it is sent, for documents.
        schema: The JSON Schema of its data, with a description; None if it has no data.
        position: How WebSocket messages and lines have the position after it, which is an id among
            server-sent events: always, sometimes, never, or always as a part of the data.
        condition: Which streams have it; None for all streams.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    schema: ClassVar[Schema | None] = None
    position: ClassVar[Literal["always", "sometimes", "never", "data"]] = "sometimes"
    condition: ClassVar[Literal["snapshot", "challenge"] | None] = None


class EntryEvent(ControlEvent, ABC, Generic[ItemT]):
    """The event of one type of entries."""

    @abstractmethod
    def describe(self, entry: ItemT) -> dict[str, Any]: ...


def _build_topics_schema(members: dict[str, Schema]) -> Schema:
    topic = build_object_schema({"topic": TEXT_SCHEMA, **members})
    return build_object_schema({"topics": {"type": "array", "items": topic}})


class BeginEvent(ControlEvent):
    name = "begin"
    summary = "The first event; its id is the position."
    position = "data"
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {
                "topics": {"type": "array", "items": TEXT_SCHEMA},
                "partitions": {"type": "object", "additionalProperties": COUNT_SCHEMA},
                "pending": {"type": "array", "items": build_object_schema(PARTITION_MEMBERS)},
                "resume": {"enum": ["exact", "batch"]},
            },
            {
                "heartbeat": {"type": "number", "description": "Of an idle stream, in seconds."},
                "view": {"const": "changed"},
                "changed": {"const": True},
            },
        ),
        "description": "The stream begins; `pending` partitions join with a `ready` each. "
        "`changed`: it goes on in place, and shows something else from here on.",
    }


class ReadyEvent(EntryEvent[Ready]):
    name = "ready"
    summary = "A partition can be read."
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {
                **PARTITION_MEMBERS,
                "offset": COUNT_SCHEMA,
                "resolved": {"enum": ["exact", "approximate"]},
            }
        ),
        "description": "A partition can be read (again), from `offset` on.",
    }

    def describe(self, entry: Ready) -> dict[str, Any]:
        return {
            **describe_partition(entry.tp),
            "offset": entry.next_offset,
            "resolved": describe_resolution(entry),
        }


class PartitionsReadyEvent(ControlEvent):
    name = "partitions-ready"
    summary = "Several partitions can be read (again)."
    schema: ClassVar[Schema | None] = {
        **_build_topics_schema(
            {
                "resolved": {"enum": ["exact", "approximate"]},
                "partitions": {"type": "array", "items": COUNT_SCHEMA},
                "offsets": {"type": "array", "items": COUNT_SCHEMA},
            }
        ),
        "description": "Partitions can be read (again), each from its offset on; sent in place of "
        "as many `ready`.",
    }


class GapEvent(EntryEvent[Gap]):
    name = "gap"
    summary = "Records that are not sent."
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {
                "topic": make_nullable(TEXT_SCHEMA),
                "partition": make_nullable(COUNT_SCHEMA),
                "from": make_nullable(INTEGER_SCHEMA),
                "to": make_nullable(INTEGER_SCHEMA),
                "reason": {"enum": [str(reason) for reason in GapReason]},
            }
        ),
        "description": "Records from `from` up to `to` are not sent: Kafka no longer has them, or "
        "the reason says why. All null: the position of the request could not be used.",
    }

    def describe(self, entry: Gap) -> dict[str, Any]:
        """Return `from`, where the stream stood, and `to`, the offset at which it goes on."""
        return {
            **describe_partition(entry.tp),
            "from": entry.offset,
            "to": entry.next_offset,
            "reason": entry.reason,
        }


class PositionEvent(ControlEvent):
    name = "position"
    summary = "The position moved: see the id. Without an id it is a heartbeat."
    position = "always"


class ErrorEvent(EntryEvent[Fault]):
    name = "error"
    summary = "Something could not be read or shown."
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {"code": TEXT_SCHEMA, "message": TEXT_SCHEMA},
            {**PARTITION_MEMBERS, "offset": COUNT_SCHEMA, "retryAfter": COUNT_SCHEMA},
        ),
        "description": "The stream goes on; `code` is for programs, `message` for people. "
        "`retryAfter`: seconds until trying again makes sense.",
    }

    def describe(self, entry: Fault) -> dict[str, Any]:
        message = f"{entry.tp} cannot be read for now ({entry.cause}); the stream goes on by itself"
        return {**describe_partition(entry.tp), "code": entry.cause, "message": message}


class PartitionsErrorEvent(ControlEvent):
    name = "partitions-error"
    summary = "Several partitions cannot be read for now."
    schema: ClassVar[Schema | None] = {
        **_build_topics_schema(
            {"code": TEXT_SCHEMA, "partitions": {"type": "array", "items": COUNT_SCHEMA}}
        ),
        "description": "Partitions cannot be read for now; sent in place of as many `error`. "
        "The stream goes on.",
    }


class EndEvent(ControlEvent):
    name = "end"
    summary = "The last event."
    position = "data"
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {"reason": {"enum": [str(r) for r in EndReason if r not in UNSENT_END_REASONS]}},
            {"retry": COUNT_SCHEMA},
        ),
        "description": "Connect again after the time of `retry:`, unless you are done. Over "
        "WebSocket, `retry` has those milliseconds if the gateway drains.",
    }


class SnapshotEndEvent(EntryEvent[SnapshotEnd]):
    name = "snapshot-end"
    summary = "What follows is live."
    position = "always"
    condition = "snapshot"
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {"topics": {"type": "array", "items": TEXT_SCHEMA}, "records": COUNT_SCHEMA},
            {"pending": {"type": "array", "items": build_object_schema(PARTITION_MEMBERS)}},
        ),
        "description": "The latest record of each key was sent; what follows is live. `pending` "
        "partitions could not be read and come when they can.",
    }

    def describe(self, entry: SnapshotEnd) -> dict[str, Any]:
        """Return the data; `pending` are the partitions that could not be read, and come later."""
        data: dict[str, Any] = {"topics": list(entry.topics), "records": entry.records}
        if entry.pending:
            data["pending"] = list(map(describe_partition, entry.pending))
        return data


class ChallengeEvent(ControlEvent):
    name = "challenge"
    summary = "A new token is needed."
    position = "never"
    condition = "challenge"
    schema: ClassVar[Schema | None] = {
        **build_object_schema(
            {
                "guard": TEXT_SCHEMA,
                "expires": {"type": "number", "description": "Seconds since 1970."},
            },
            {"url": {"type": "string", "format": "uri-reference"}},
        ),
        "description": "Your access expires at `expires`: POST to `url` with a new token, "
        "or send `token` over WebSocket, and the stream goes on.",
    }


ENTRY_EVENTS: dict[type, EntryEvent[Any]] = {
    Gap: GapEvent(),
    Ready: ReadyEvent(),
    Fault: ErrorEvent(),
    SnapshotEnd: SnapshotEndEvent(),
}
"""The events of entries, by the type of the entry. Other entries, such as `Skip`, have none."""

CONTROL_EVENTS: dict[str, ControlEvent] = {
    event.name: event
    for event in (
        BeginEvent(),
        ENTRY_EVENTS[Ready],
        PartitionsReadyEvent(),
        ENTRY_EVENTS[Gap],
        PositionEvent(),
        ENTRY_EVENTS[Fault],
        PartitionsErrorEvent(),
        EndEvent(),
        ENTRY_EVENTS[SnapshotEnd],
        ChallengeEvent(),
    )
}
"""All control events, by name."""


def describe_entry(entry: StreamItem) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the data of the event for an entry; None if it has none."""
    event = ENTRY_EVENTS.get(type(entry))
    return None if event is None else (event.name, event.describe(entry))


def describe_partition(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


def describe_resolution(entry: Ready) -> str:
    return "approximate" if entry.is_approximate else "exact"


MAX_PARTITIONS = 1000
"""How many partitions an event names at most: about 20 KB at offsets of 10^10."""

EncodeHead: TypeAlias = Callable[[str, dict[str, Any]], bytes]
"""Returns the head of a control event by its name and data."""


class StatusHead(bytes):
    """The head of a `ready` or an `error`, which may be joined with the next ones.

    Its bytes are those that the event has by itself, so that its length can be counted before the
    chunk is rendered.
    """

    entry: Ready | Fault


def create_status_head(entry: StreamItem, head: bytes) -> bytes:
    """Return the head for `join_statuses`: `head` as it is if the entry cannot be joined."""
    if not isinstance(entry, Ready | Fault):
        return head
    status_head = StatusHead(head)
    status_head.entry = entry
    return status_head


def join_statuses(
    events: Sequence[ChannelEvent], encode_head: EncodeHead
) -> Sequence[ChannelEvent]:
    """Return the events with each run of `ready`, and of `error`, joined.

    A joined event has the last id of its run.
    """
    for event in events:  # most chunks have records alone, which are looked at only once
        if type(event.payload) is StatusHead:
            return list(_iter_joined(events, encode_head))
    return events


def _iter_joined(events: Iterable[ChannelEvent], encode_head: EncodeHead) -> Iterator[ChannelEvent]:
    run: list[ChannelEvent] = []
    for event in events:
        if type(event.payload) is not StatusHead:
            if run:
                yield _join_run(run, encode_head)
                run = []
            yield event
            continue
        # A run is of one type: which of `ready` and `error` came last decides a partition's state.
        if run and (len(run) == MAX_PARTITIONS or _entry_type(run[0]) is not _entry_type(event)):
            yield _join_run(run, encode_head)
            run = []
        run.append(event)
    if run:
        yield _join_run(run, encode_head)


def _entry_type(event: ChannelEvent) -> type:
    return type(_get_entry(event))


def _get_entry(event: ChannelEvent) -> Ready | Fault:
    assert type(event.payload) is StatusHead
    return event.payload.entry


def _join_run(run: list[ChannelEvent], encode_head: EncodeHead) -> ChannelEvent:
    latest: dict[TopicPartition, Ready | Fault] = {}
    for event in run:
        entry = _get_entry(event)
        latest[entry.tp] = entry  # a later one replaces it, in the place of the first
    entries = list(latest.values())
    description = describe_entry(entries[0]) if len(entries) == 1 else _describe_run(entries)
    assert description is not None
    # It may be the id of an event before the last: what follows that one is repeated on a resume.
    texts = [event.token_text for event in run if event.token_text is not None]
    return ChannelEvent(None, encode_head(*description), texts[-1] if texts else None)


def _describe_run(entries: Iterable[Ready | Fault]) -> tuple[str, dict[str, Any]]:
    name = PartitionsReadyEvent.name
    # By topic and by what the partitions have in common: how they were resolved, or the cause.
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        topic, partition = entry.tp
        if type(entry) is Ready:
            resolution = describe_resolution(entry)
            new_group = {"topic": topic, "resolved": resolution, "partitions": [], "offsets": []}
            group = groups.setdefault((topic, resolution), new_group)
            group["offsets"].append(entry.next_offset)
        else:
            assert type(entry) is Fault
            name = PartitionsErrorEvent.name
            new_group = {"topic": topic, "code": entry.cause, "partitions": []}
            group = groups.setdefault((topic, entry.cause), new_group)
        group["partitions"].append(partition)
    return name, {"topics": list(groups.values())}
