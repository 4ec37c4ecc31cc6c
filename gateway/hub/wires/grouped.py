"""Join events about many partitions into one.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from gateway.core.channel.chunk_ring import ChannelEvent
from gateway.core.log.record import Fault, Ready, StreamItem, TopicPartition

from .control_events import (
    PartitionsErrorEvent,
    PartitionsReadyEvent,
    describe_entry,
    describe_resolution,
)

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
