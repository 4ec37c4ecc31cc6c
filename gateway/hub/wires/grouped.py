"""Events about many partitions in one, for clients that say they understand it.

One restart of a broker makes thousands of partitions ready again, which are as many `ready` events
to every client of them. On a grouped wire, those that follow each other without a record or another
event between are one `partitions-ready` event (or `partitions-error`) for each MAX_PARTITIONS of
them. One partition alone has the same event as on any other wire.

A joined event names each partition once, with the last that its run says about it: its groups have
no order in time, so a partition in two of them would end at either.

An encoder makes heads of entries one by one, and each is kept until its chunk is rendered, which is
once for all clients that share it: there the heads say what they are made of, and are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from gateway.core.channel.channel import ChannelEvent
from gateway.core.log.record import Fault, Ready, StreamItem, TopicPartition

from .control_events import describe_entry, describe_resolution

MAX_PARTITIONS = 1000
"""Of one event: some 20 KB at offsets of 10^10."""

PARTITIONS_READY = "partitions-ready"
PARTITIONS_ERROR = "partitions-error"

EncodeHead: TypeAlias = Callable[[str, dict[str, Any]], bytes]


class StatusHead(bytes):
    """The head of a `ready` or an `error`, which may be joined with the next ones.

    Its bytes are about those that the event has by itself, so that sizes are told by it.
    """

    entry: Ready | Fault


def create_status_head(entry: StreamItem, head: bytes) -> bytes:
    """Return the head of an entry as `join_statuses` takes it."""
    if not isinstance(entry, Ready | Fault):
        return head
    made = StatusHead(head)
    made.entry = entry
    return made


def iter_joined_statuses(
    events: Iterable[ChannelEvent], encode_head: EncodeHead
) -> Iterator[ChannelEvent]:
    """Return the events with each run of `ready`, and of `error`, joined.

    Args:
        events: In order. A joined one has the last id of its run.
        head: Makes a head of the name and the data of a control event.
    """
    run: list[ChannelEvent] = []
    for event in events:
        if type(event.payload) is not StatusHead:
            if run:
                yield _join_run(run, encode_head)
                run = []
            yield event
            continue
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
        latest[entry.tp] = entry
    entries = list(latest.values())
    told = describe_entry(entries[0]) if len(entries) == 1 else _describe_run(entries)
    assert told is not None
    texts = [event.token_text for event in run if event.token_text is not None]
    return ChannelEvent(None, encode_head(*told), texts[-1] if texts else None)


def _describe_run(entries: Iterable[Ready | Fault]) -> tuple[str, dict[str, Any]]:
    name = PARTITIONS_READY
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        topic, partition = entry.tp
        if type(entry) is Ready:
            state = describe_resolution(entry)
            empty = {"topic": topic, "resolved": state, "partitions": [], "offsets": []}
            group = groups.setdefault((topic, state), empty)
            group["offsets"].append(entry.next_offset)
        else:
            assert type(entry) is Fault
            name = PARTITIONS_ERROR
            empty = {"topic": topic, "code": entry.cause, "partitions": []}
            group = groups.setdefault((topic, entry.cause), empty)
        group["partitions"].append(partition)
    return name, {"topics": list(groups.values())}
