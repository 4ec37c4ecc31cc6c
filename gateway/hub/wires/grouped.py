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

from gateway.core.channel.channel import Event
from gateway.core.log.record import Fault, News, Ready, TopicPartition

from .control_events import resolution, tell

MAX_PARTITIONS = 1000
"""Of one event: some 20 KB at offsets of 10^10."""

READY = "partitions-ready"
ERROR = "partitions-error"

Head: TypeAlias = Callable[[str, dict[str, Any]], bytes]


class StatusHead(bytes):
    """The head of a `ready` or an `error`, which may be joined with the next ones.

    Its bytes are about those that the event has by itself, so that sizes are told by it.
    """

    entry: Ready | Fault


def status_head(entry: News, head: bytes) -> bytes:
    """Return the head of an entry as `join_statuses` takes it."""
    if not isinstance(entry, Ready | Fault):
        return head
    made = StatusHead(head)
    made.entry = entry
    return made


def join_statuses(events: Iterable[Event], head: Head) -> Iterator[Event]:
    """Return the events with each run of `ready`, and of `error`, joined.

    Args:
        events: In order. A joined one has the last id of its run.
        head: Makes a head of the name and the data of a control event.
    """
    run: list[Event] = []
    for event in events:
        if type(event.head) is not StatusHead:
            if run:
                yield _join_run(run, head)
                run = []
            yield event
            continue
        if run and (len(run) == MAX_PARTITIONS or _kind(run[0]) is not _kind(event)):
            yield _join_run(run, head)
            run = []
        run.append(event)
    if run:
        yield _join_run(run, head)


def _kind(event: Event) -> type:
    return type(_entry(event))


def _entry(event: Event) -> Ready | Fault:
    assert type(event.head) is StatusHead
    return event.head.entry


def _join_run(run: list[Event], head: Head) -> Event:
    latest: dict[TopicPartition, Ready | Fault] = {}
    for event in run:
        entry = _entry(event)
        latest[entry.tp] = entry
    entries = list(latest.values())
    told = tell(entries[0]) if len(entries) == 1 else _describe_run(entries)
    assert told is not None
    texts = [event.text for event in run if event.text is not None]
    return Event(None, head(*told), texts[-1] if texts else None)


def _describe_run(entries: Iterable[Ready | Fault]) -> tuple[str, dict[str, Any]]:
    name = READY
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in entries:
        topic, partition = entry.tp
        if type(entry) is Ready:
            state = resolution(entry)
            empty = {"topic": topic, "resolved": state, "partitions": [], "offsets": []}
            group = groups.setdefault((topic, state), empty)
            group["offsets"].append(entry.next)
        else:
            assert type(entry) is Fault
            name = ERROR
            empty = {"topic": topic, "code": entry.cause, "partitions": []}
            group = groups.setdefault((topic, entry.cause), empty)
        group["partitions"].append(partition)
    return name, {"topics": list(groups.values())}
