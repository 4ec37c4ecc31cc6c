"""Clients of a hub with no connection: bytes go by way of whatever wire, are cut, held back and
resumed, and each client's are held against what it may see (`isolation`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from support.clients.websocket import FrameParser
from support.grouped import iter_single_events
from support.isolation import IsolationError, Offsets, ViewRequest, ViewSegment, WrittenRecord
from support.message_parser import MessageParser
from support.ndjson_parser import NdjsonParser
from support.single_client import drain_outlet
from support.sse import SseEvent, SseParser
from support.zstd import FrameDecoder

from gateway.config import Rate
from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.core.log.record import TopicPartition
from gateway.core.token.resume_token import parse_token
from gateway.hub.fanout.client import Client, ClientOptions, Handover
from gateway.hub.fanout.hub import Hub
from gateway.hub.reads.position_resolver import StreamStart
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.websocket import WebSocketWire, encode_label
from gateway.hub.wires.wire import Wire
from gateway.hub.wires.wrapping import ChunkedWire, DictionaryWire, GzipWire
from gateway.wire.websocket import insert_member
from gateway.wire.zstd import CompressionDictionary

DICTIONARY = CompressionDictionary(b'data: {"key":"a","value":1}\nid: 1\n\n')
UNLIMITED_RECORDS = 1 << 20  # records


class ByteReader(Protocol):
    """What a client makes of bytes; `last_event_id` is where it would go on."""

    last_event_id: str

    def feed(self, data: bytes) -> list[SseEvent]: ...


class Dechunker:
    """Takes chunks of HTTP away, which come whole."""

    def __init__(self, decode: Callable[[bytes], bytes]) -> None:
        self._decode = decode
        self._buffer = b""

    def __call__(self, data: bytes) -> bytes:
        self._buffer += data
        found = b""
        while b"\r\n" in self._buffer:
            length, _, rest = self._buffer.partition(b"\r\n")
            size = int(length, 16)
            if len(rest) < size + 2:
                break
            found, self._buffer = found + rest[:size], rest[size + 2 :]
        return self._decode(found)


class DecodingReader:
    """A reader of bytes that something is to be taken off first."""

    def __init__(self, decode: Callable[[bytes], bytes], parser: SseParser) -> None:
        self._decode = decode
        self._parser = parser

    @property
    def last_event_id(self) -> str:
        return self._parser.last_event_id

    def feed(self, data: bytes) -> list[SseEvent]:
        return self._parser.feed(self._decode(data))


class FrameReader:
    """A reader of WebSocket frames, each of which has the label of its stream."""

    def __init__(self, label: str | None) -> None:
        self._frames = FrameParser()
        self._parser = MessageParser(label)

    @property
    def last_event_id(self) -> str:
        return self._parser.last_event_id

    def feed(self, data: bytes) -> list[SseEvent]:
        return [
            each
            for said in self._frames.feed(data)
            for each in self._parser.feed_message(said.message_text)
        ]


def keep_bytes(data: bytes) -> bytes:
    return data


def create_gunzip() -> Callable[[bytes], bytes]:
    return zlib.decompressobj(31).decompress


READERS_BY_WIRE: Mapping[str, tuple[Wire, Callable[[str], ByteReader]]] = {
    "sse": (SseWire(), lambda label: SseParser()),
    "sse, gzip": (GzipWire(SseWire()), lambda label: DecodingReader(create_gunzip(), SseParser())),
    "sse, direct": (
        ChunkedWire(GzipWire(SseWire())),
        lambda label: DecodingReader(Dechunker(create_gunzip()), SseParser()),
    ),
    "sse, dictionary": (
        ChunkedWire(DictionaryWire(SseWire(), DICTIONARY)),
        lambda label: DecodingReader(Dechunker(FrameDecoder(DICTIONARY.content).feed), SseParser()),
    ),
    "ndjson": (
        ChunkedWire(NdjsonWire(True)),
        lambda label: DecodingReader(Dechunker(keep_bytes), NdjsonParser()),
    ),
    "websocket": (WebSocketWire(), lambda label: FrameReader(None)),
    "websocket, labels": (WebSocketWire(labelled=True), FrameReader),
    "websocket, deflate": (WebSocketWire(labelled=True, deflate=True), FrameReader),
}


class IsolatedClient:
    """One client over all of its connections, and the outlet of its hub's clients.

    label:  Of its stream, where the wire has labels.
    credit: Records that it grants at first; none for any number.
    """

    def __init__(
        self,
        hub: Hub,
        request: ViewRequest,
        wire: str,
        label: str,
        *,
        origin: Any = "live",
        credit: int | None = None,
        rate: Rate | None = None,
        last_event_id: str = "",
    ) -> None:
        self.request = request
        self.wire, self._create_reader = READERS_BY_WIRE[wire]
        self.wire_name, self.label = wire, label
        self.segments: list[ViewSegment] = []
        self.last_event_id = last_event_id
        self.client: Client | None = None
        self.is_finished = False
        self.full = False
        self._hub = hub
        self._origin, self._credit, self._rate = origin, credit, rate
        self.options = origin, credit, rate
        self._unread = bytearray()
        self._reader = self._create_reader(label)
        self._handover: Handover | None = None
        labelled = isinstance(self.wire, WebSocketWire) and self.wire.labelled
        self._member = encode_label(label) if labelled else None

    def __repr__(self) -> str:
        return f"{self.wire_name} {self.label} {self.options} {self.segments}"

    # the outlet

    def write(self, data: bytes) -> None:
        self._unread += data if self._member is None else insert_member(data, self._member)

    def finish(self, data: bytes) -> None:
        if data:
            self.write(data)
        self.is_finished = True

    def hand_over(self) -> None:
        assert self.client is not None
        self._handover = self.client.take_handover()

    # the client

    async def connect(self) -> None:
        """Where it stood, or for the first time."""
        assert self.client is None
        token = parse_token(self.last_event_id) if self.last_event_id else None
        start = StreamStart(
            token, self._origin, credit=self._credit, snapshot=self.request.has_snapshot
        )
        self._unread.clear()
        self._reader, self.is_finished, self.full = self._create_reader(self.label), False, False
        await self._attach(start, None)

    async def _attach(self, start: StreamStart, handover: Handover | None) -> None:
        client = await self._hub.subscribe(
            self.request.view,
            start,
            self.wire,
            ClientOptions(60.0, self.request.slow_policy, rate=self._rate, handover=handover),
        )
        await client.wait_until_ready()
        self.client = client
        client.attach(self)

    def change_request(self, request: ViewRequest) -> None:
        """Show something else from where it stands, on the same connection."""
        if self.client is not None and not self.is_finished and self._handover is None:
            self.read_events()
            self.request = request
            self.client.end(EndReason.CHANGED)

    async def finish_change(self) -> None:
        """Take over from a client that was told to change, once it is gone."""
        if self._handover is None:
            return
        handed, self._handover = self._handover, None
        token = parse_token(handed.position.decode())
        start = StreamStart(
            token,
            max_records=handed.records_left,
            credit=handed.credit,
            snapshot=self.request.has_snapshot,
        )
        await self._attach(start, handed)

    @property
    def is_changing(self) -> bool:
        return self.client is not None and self.client.subscription.end_reason == EndReason.CHANGED

    def stop_reading(self) -> None:
        """Take nothing any more."""
        self.full = True

    def resume_reading(self) -> None:
        self.full = False
        if self.client is not None and self._handover is None:
            drain_outlet(self.client)

    def grant_credit(self, records: int = UNLIMITED_RECORDS) -> None:
        if self._credit is not None and self.client is not None:
            self.client.grant_credit(records)

    def disconnect(self, read_share: float) -> None:
        """Read this share of what is on its way; the rest is lost."""
        if self.client is None:
            return
        self.read_events(int(len(self._unread) * read_share))
        self._unread.clear()
        self.client.close()
        self.client, self._handover = None, None
        if self.segments:
            self.segments[-1].discard_unconfirmed()

    # what it makes of what comes; `written` by number

    written_records: Mapping[int, WrittenRecord] = {}

    def read_events(self, max_bytes: int | None = None) -> None:
        data = bytes(self._unread[:max_bytes])
        del self._unread[: len(data)]
        for event in self._reader.feed(data):
            self._apply_event(event)
        self._keep_id(self._reader.last_event_id)

    def _keep_id(self, id: str) -> None:
        if id and id != self.last_event_id:
            self.last_event_id = id
            if self.segments:
                self.segments[-1].confirm_received()

    def _apply_event(self, event: SseEvent) -> None:
        if event.event_type == "begin":
            self._apply_begin(event)
        elif event.event_type == "message":
            self.segments[-1].accept_event(event.data, self.written_records)
        elif event.event_type == "gap":
            told, ask = event.parse_json(), self.segments[-1].request
            if ask.slow_policy is not SlowClientPolicy.SKIP:
                raise IsolationError(f"{event.data} to {ask}")
            tp = TopicPartition(told["topic"], told["partition"])
            self.segments[-1].gaps.append((tp, told["from"], told["to"]))
        elif event.event_type in ("ready", "partitions-ready"):
            for _, told in iter_single_events(event.event_type, event.parse_json()):
                tp = TopicPartition(told["topic"], told["partition"])
                self.segments[-1].starts.setdefault(tp, told["offset"])
        elif event.event_type in ("error", "partitions-error"):
            raise IsolationError(f"{event.data} to {self.request}")
        self._keep_id(event.last_event_id)

    def _apply_begin(self, event: SseEvent) -> None:
        """The first stretch, or another; or the last one goes on."""
        last = self.segments[-1] if self.segments else None
        if last is not None and last.request is self.request:
            return
        starts = self._decode_offsets(event.last_event_id)
        if last is not None:
            # What the token says of topics that are not looked at any more is in the last id.
            last.ends = self._decode_topic_offsets(self.last_event_id, last.request.topics) | starts
            last.confirm_received()
        self.segments.append(ViewSegment(self.request, starts))

    def _decode_offsets(self, id: str) -> Offsets:
        return self._decode_topic_offsets(id, self.request.topics)

    def _decode_topic_offsets(self, id: str, topics: tuple[str, ...]) -> Offsets:
        told = parse_token(id).match_topics(topics)
        return {
            TopicPartition(name, p): offset
            for name, topic in told.items()
            for p, offset in enumerate(topic.offsets)
            if offset is not None
        }

    def list_missing(self) -> list[WrittenRecord]:
        """What is yet to come. Raises Wrong."""
        found = [each.find_missing(self.written_records.values()) for each in self.segments]
        return [each for some in found for each in some]
