"""Clients of a hub with no connection: bytes go by way of whatever wire, are cut, held back and
resumed, and each client's are held against what it may see (`isolation`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from support.clients.websocket import Frames
from support.isolation import Ask, Offsets, Stretch, Written, Wrong
from support.lines import LineParser
from support.messages import MessageParser
from support.sse import Event, Parser

from gateway.config import Rate
from gateway.core.client.slow_client import SlowClient
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import decode
from gateway.hub.fanout.client import CHANGED, Client, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.resume import Start
from gateway.hub.wires.chunked import Framed
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.lines import Ndjson
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.websocket import WebSocket, label_member
from gateway.hub.wires.wire import Wire
from gateway.wire.websocket import insert_member

UNLIMITED = 1 << 20  # records


class Reader(Protocol):
    """What a client makes of bytes; `last_event_id` is where it would go on."""

    last_event_id: str

    def feed(self, data: bytes) -> list[Event]: ...


class Unframed:
    """Takes chunks of HTTP away, which come whole."""

    def __init__(self, inner: Callable[[bytes], bytes]) -> None:
        self._inner = inner
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        self._rest += data
        found = b""
        while b"\r\n" in self._rest:
            length, _, rest = self._rest.partition(b"\r\n")
            size = int(length, 16)
            if len(rest) < size + 2:
                break
            found, self._rest = found + rest[:size], rest[size + 2 :]
        return self._inner(found)


class Through:
    """A reader of bytes that something is to be taken off first."""

    def __init__(self, taken_off: Callable[[bytes], bytes], parser: Parser) -> None:
        self._taken_off = taken_off
        self._parser = parser

    @property
    def last_event_id(self) -> str:
        return self._parser.last_event_id

    def feed(self, data: bytes) -> list[Event]:
        return self._parser.feed(self._taken_off(data))


class Messages:
    """A reader of WebSocket frames, each of which has the label of its stream."""

    def __init__(self, label: str | None) -> None:
        self._frames = Frames()
        self._parser = MessageParser(label)

    @property
    def last_event_id(self) -> str:
        return self._parser.last_event_id

    def feed(self, data: bytes) -> list[Event]:
        return [each for said in self._frames.feed(data) for each in self._parser.feed(said.text)]


def plain(data: bytes) -> bytes:
    return data


def unzipped() -> Callable[[bytes], bytes]:
    return zlib.decompressobj(31).decompress


WIRES: Mapping[str, tuple[Wire, Callable[[str], Reader]]] = {
    "sse": (Sse(), lambda label: Parser()),
    "sse, gzip": (Gzip(Sse()), lambda label: Through(unzipped(), Parser())),
    "sse, direct": (Framed(Gzip(Sse())), lambda label: Through(Unframed(unzipped()), Parser())),
    "ndjson": (Framed(Ndjson(True)), lambda label: Through(Unframed(plain), LineParser())),
    "websocket": (WebSocket(), lambda label: Messages(None)),
    "websocket, labels": (WebSocket(labelled=True), Messages),
    "websocket, deflate": (WebSocket(labelled=True, deflate=True), Messages),
}


class Isolated:
    """One client over all of its connections, and the outlet of its hub's clients.

    label:  Of its stream, where the wire has labels.
    credit: Records that it grants at first; none for any number.
    """

    def __init__(
        self,
        hub: Hub,
        ask: Ask,
        wire: str,
        label: str,
        *,
        origin: Any = "live",
        credit: int | None = None,
        rate: Rate | None = None,
        last_event_id: str = "",
    ) -> None:
        self.ask = ask
        self.wire, self._reader_of = WIRES[wire]
        self.wire_name, self.label = wire, label
        self.stretches: list[Stretch] = []
        self.last_event_id = last_event_id
        self.client: Client | None = None
        self.finished = False
        self.full = False
        self._hub = hub
        self._origin, self._credit, self._rate = origin, credit, rate
        self.way = origin, credit, rate
        self._bytes = bytearray()
        self._reader = self._reader_of(label)
        self._handed: Handover | None = None
        labelled = isinstance(self.wire, WebSocket) and self.wire.labelled
        self._member = label_member(label) if labelled else None

    def __repr__(self) -> str:
        return f"{self.wire_name} {self.label} {self.way} {self.stretches}"

    # the outlet

    def write(self, data: bytes) -> None:
        self._bytes += data if self._member is None else insert_member(data, self._member)

    def finish(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.finished = True

    def hand_over(self) -> None:
        assert self.client is not None
        self._handed = self.client.handover()

    # the client

    async def connect(self) -> None:
        """Where it stood, or for the first time."""
        assert self.client is None
        token = decode(self.last_event_id) if self.last_event_id else None
        start = Start(token, self._origin, credit=self._credit, snapshot=self.ask.snapshot)
        self._bytes.clear()
        self._reader, self.finished, self.full = self._reader_of(self.label), False, False
        await self._attach(start, None)

    async def _attach(self, start: Start, after: Handover | None) -> None:
        client = await self._hub.subscribe(
            self.ask.view, start, self.wire,
            heartbeat=60.0, slow=self.ask.slow, rate=self._rate, after=after,
        )  # fmt: skip
        await client.ready()
        self.client = client
        client.attach(self)

    def change(self, ask: Ask) -> None:
        """Show something else from where it stands, on the same connection."""
        if self.client is not None and not self.finished and self._handed is None:
            self.read()
            self.ask = ask
            self.client.end(CHANGED)

    async def go_on(self) -> None:
        """Take over from a client that was told to change, once it is gone."""
        if self._handed is None:
            return
        handed, self._handed = self._handed, None
        token = decode(handed.position.decode())
        start = Start(token, count=handed.records, credit=handed.credit, snapshot=self.ask.snapshot)
        await self._attach(start, handed)

    @property
    def is_changing(self) -> bool:
        return self.client is not None and self.client.subscription.ended == CHANGED

    def hold(self) -> None:
        """Take nothing any more."""
        self.full = True

    def release(self) -> None:
        self.full = False
        if self.client is not None and self._handed is None:
            self.client.drained()

    def grant(self, records: int = UNLIMITED) -> None:
        if self._credit is not None and self.client is not None:
            self.client.grant(records)

    def cut(self, share: float) -> None:
        """Read this share of what is on its way; the rest is lost."""
        if self.client is None:
            return
        self.read(int(len(self._bytes) * share))
        self._bytes.clear()
        self.client.close()
        self.client, self._handed = None, None
        if self.stretches:
            self.stretches[-1].forget()

    # what it makes of what comes; `written` by number

    written: Mapping[int, Written] = {}

    def read(self, size: int | None = None) -> None:
        data = bytes(self._bytes[:size])
        del self._bytes[: len(data)]
        for event in self._reader.feed(data):
            self._hear(event)
        self._mark(self._reader.last_event_id)

    def _mark(self, id: str) -> None:
        if id and id != self.last_event_id:
            self.last_event_id = id
            if self.stretches:
                self.stretches[-1].keep()

    def _hear(self, event: Event) -> None:
        if event.type == "begin":
            self._begin(event)
        elif event.type == "message":
            self.stretches[-1].hear(event.data, self.written)
        elif event.type == "gap":
            told, ask = event.json(), self.stretches[-1].ask
            if ask.slow is not SlowClient.SKIP:
                raise Wrong(f"{event.data} to {ask}")
            tp = TopicPartition(told["topic"], told["partition"])
            self.stretches[-1].gaps.append((tp, told["from"], told["to"]))
        elif event.type == "ready":
            told = event.json()
            tp = TopicPartition(told["topic"], told["partition"])
            self.stretches[-1].starts.setdefault(tp, told["offset"])
        elif event.type == "error":
            raise Wrong(f"{event.data} to {self.ask}")
        self._mark(event.last_event_id)

    def _begin(self, event: Event) -> None:
        """The first stretch, or another; or the last one goes on."""
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.ask is self.ask:
            return
        starts = self._offsets(event.last_event_id)
        if last is not None:
            # What the token says of topics that are not looked at any more is in the last id.
            last.ends = self._all(self.last_event_id, last.ask.topics) | starts
            last.keep()
        self.stretches.append(Stretch(self.ask, starts))

    def _offsets(self, id: str) -> Offsets:
        return self._all(id, self.ask.topics)

    def _all(self, id: str, topics: tuple[str, ...]) -> Offsets:
        told = decode(id).among(topics)
        return {
            TopicPartition(name, p): offset
            for name, topic in told.items()
            for p, offset in enumerate(topic.offsets)
            if offset is not None
        }

    def missing(self) -> list[Written]:
        """What is yet to come. Raises Wrong."""
        found = [each.missing(self.written.values()) for each in self.stretches]
        return [each for some in found for each in some]
