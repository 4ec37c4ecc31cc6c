"""Clients of the bench: those of `support.clients`, without a process or a proxy of their own.

Each notes what it got and when, over all of its connections, in the terms of `support.received`. It
reconnects by itself, like a browser, with the last id, each time to any of the gateways.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeAlias

import httpx
from support.clients.client import ReceivedEvent
from support.clients.ndjson import NdjsonClient
from support.clients.raw import RawClient
from support.clients.secure import SecureEventSource
from support.clients.websocket import WebSocketClient
from support.grouped import SINGLE_NAMES, iter_single_events
from support.received import GapEvent, ReceivedItem, ReceivedRecord, parse_envelope, parse_gaps

from gateway.core.log.record import TopicPartition

from .views import ClientPlan, Rule, Wire, describe_other_metadata

# By these the gateway knows that only an answer with status 200 brings the client back.
BROWSER_HEADERS = {"Sec-Fetch-Mode": "cors"}
MAX_NOTES = 400  # other events kept of each client
MAX_PROTOCOL_ERRORS = 20  # kept of each client
ServerChoice: TypeAlias = Callable[[], str]


@dataclass(slots=True)
class Connection:
    """A connection of a client.

    Attributes:
        opened_at: When it asked, by `time.monotonic`.
        token: The position that it came back with; empty at first.
        first_item: How many records and gaps it had by then.
        begin_id: The position of its `begin`; empty before.
        resume_mode: What `begin` said of it: exact or batch.
    """

    opened_at: float
    token: str
    first_item: int
    begin_id: str = ""
    resume_mode: str = ""


class ClientPosition(NamedTuple):
    """A position that a client could have come back with.

    Attributes:
        item_count: How many records and gaps it had by then.
        token: The position.
    """

    item_count: int
    token: str


class ProtocolError(NamedTuple):
    """Something about an event that should not be, whatever was written.

    Attributes:
        tp: The partition; None if the event is of none.
        offset: The offset of a record; -1 otherwise.
        text: What is wrong.
    """

    tp: TopicPartition | None
    offset: int
    text: str


@dataclass
class ClientLog:
    """What a client got.

    Attributes:
        plan: Its view and wire.
        items: Its records and gaps, in the order in which they came.
        times: When each came, by `time.monotonic`.
        connections: Its connections.
        notes: Its other events, the last ones: when, name and data.
        latest: Of each partition the record that came last.
        table: Of each key the record that came last, by topic partition and key.
        pending: The partitions that the last `begin` named so and that are not ready since.
        positions: The positions that it had.
        protocol_errors: What was wrong with events, the first ones.
        record_count: How many records came.
        errors: Its `error` events: when each came, and its data.
    """

    plan: ClientPlan
    items: list[ReceivedItem] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    notes: list[tuple[float, str, str]] = field(default_factory=list)
    latest: dict[TopicPartition, ReceivedRecord] = field(default_factory=dict)
    table: dict[tuple[TopicPartition, bytes | None], ReceivedRecord] = field(default_factory=dict)
    pending: set[TopicPartition] = field(default_factory=set)
    positions: list[ClientPosition] = field(default_factory=list)
    protocol_errors: list[ProtocolError] = field(default_factory=list)
    record_count: int = 0
    errors: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        """Return whether a stream of all partitions has begun."""
        return any(each.begin_id for each in self.connections) and not self.pending

    @property
    def gaps(self) -> list[GapEvent]:
        """Return the gaps that it was told."""
        return [item for item in self.items if isinstance(item, GapEvent)]

    def add_connection(self, token: str) -> None:
        """Note that it asks for a stream, from a position or from none."""
        self.connections.append(Connection(time.monotonic(), token, len(self.items)))

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Note an event: its name, id and data."""
        name, now = event["event"] or "message", time.monotonic()
        if name in ("message", "delete"):
            self._add_record(event, now, is_delete=name == "delete")
        elif name == "gap":
            gaps = parse_gaps(event["data"])
            self.items += gaps
            self.times += [now] * len(gaps)
        elif name == "begin" and self.connections:
            self.connections[-1].begin_id = event["id"]
            data = json.loads(event["data"])
            self.connections[-1].resume_mode = data["resume"]
            self.pending = {read_partition(each) for each in data["pending"]}
        elif name in ("ready", "error", *SINGLE_NAMES):
            for single, data in iter_single_events(name, json.loads(event["data"])):
                if single == "ready":
                    self.pending.discard(read_partition(data))
                else:
                    self.errors.append((now, data))
        self._note_position(event["id"], is_record=name in ("message", "delete"))
        if name not in ("message", "delete", "position"):
            self.notes.append((now, name, event["data"][:300]))
            del self.notes[:-MAX_NOTES]

    def _add_record(self, event: Mapping[str, Any], now: float, *, is_delete: bool) -> None:
        data = json.loads(event["data"])
        record = _parse_record(event, data)
        assert record.tp is not None
        self._check_record(record, data, is_delete=is_delete)
        self.items.append(record)
        self.times.append(now)
        self.latest[record.tp] = record
        self.table[record.tp, record.key] = record
        self.record_count += 1

    def _note_position(self, token: str, *, is_record: bool) -> None:
        """Note the position after an event, which is that of the event before if it has none."""
        if not token:
            return
        # Records of one message of a WebSocket, and of one flush of a table, have one position.
        view, wire = self.plan.view, self.plan.wire
        has_own = is_record and view.rule is Rule.STREAM and wire is not Wire.WEBSOCKET
        if not has_own and self.positions and self.positions[-1].token == token:
            del self.positions[-1]
        self.positions.append(ClientPosition(len(self.items), token))

    def _check_record(
        self, record: ReceivedRecord, data: Mapping[str, Any], *, is_delete: bool
    ) -> None:
        texts = []
        if not self.connections[-1].begin_id:
            texts.append("before the `begin` of its connection")
        if is_delete is not (record.value is None):
            texts.append(f"the event is {'delete' if is_delete else 'message'}: {record.value!r}")
        if record.key is None:
            texts.append("it has no key, but all were written with one")
        if record.value is not None:
            texts.append(describe_other_metadata(record.value, data["timestamp"], data["headers"]))
        for text in filter(None, texts):
            self._add_protocol_error(record.tp, record.offset, text)

    def _add_protocol_error(self, tp: TopicPartition | None, offset: int | None, text: str) -> None:
        if len(self.protocol_errors) < MAX_PROTOCOL_ERRORS:
            at = -1 if offset is None else offset
            self.protocol_errors.append(ProtocolError(tp, at, text))


def _parse_record(event: Mapping[str, Any], data: dict[str, Any]) -> ReceivedRecord:
    """Return a record without its id; a value with a schema is shown as JSON, not as text."""
    if isinstance(data["value"], dict) and "base64" not in data["value"]:
        data["value"] = json.dumps(data["value"], separators=(",", ":"))
        event = {**event, "data": json.dumps(data)}
    return parse_envelope(event)._replace(id="")


def read_partition(data: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(data["topic"], data["partition"])


class _EventSink(list[ReceivedEvent]):
    """In place of the list of events of a client: gives each to a log, and keeps none."""

    def __init__(self, log: ClientLog) -> None:
        super().__init__()
        self._log = log

    def append(self, event: ReceivedEvent, /) -> None:
        self._log.add_event(event)

    def insert(self, index: SupportsIndex, event: ReceivedEvent, /) -> None:
        raise NotImplementedError


class FaultClient(Protocol):
    """A client of the bench, from `start` to `stop`."""

    log: ClientLog
    is_closed: bool
    errors: list[str]

    async def start(self) -> None:
        """Begin, or go on from its last position."""

    async def stop(self) -> None:
        """Go away; what it got stays."""

    def describe_state(self) -> str:
        """Return what it does now, for the message of a finding."""


class _Logged(RawClient):
    """A client without a proxy of its own that asks another gateway each time."""

    keeps_body = False

    def __init__(
        self, plan: ClientPlan, choose_server: ServerChoice, headers: Mapping[str, str]
    ) -> None:
        super().__init__(f"http://127.0.0.1{plan.view.path}", headers=headers)
        self.log = ClientLog(plan)
        self.events = _EventSink(self.log)
        self._choose_server = choose_server
        self.reconnect_delay = 0.2

    async def _open_and_read(self) -> None:
        self.set_server(self._choose_server())
        self.log.add_connection(self._last_event_id)
        await super()._open_and_read()


class LoggedEventSource(_Logged):
    """An EventSource."""

    def __init__(
        self, plan: ClientPlan, choose_server: ServerChoice, headers: Mapping[str, str]
    ) -> None:
        super().__init__(plan, choose_server, {**BROWSER_HEADERS, **headers})


class LoggedNdjson(_Logged, NdjsonClient):
    """A program that reads lines of JSON."""


class LoggedWebSocket(_Logged, WebSocketClient):
    """A program on a WebSocket."""


class LoggedSecureEventSource(SecureEventSource):
    """An EventSource over HTTP/2, which shares a connection with others."""

    def __init__(
        self, plan: ClientPlan, http: httpx.AsyncClient, headers: Mapping[str, str]
    ) -> None:
        super().__init__(http, plan.view.path, headers={**BROWSER_HEADERS, **headers})
        self.log = ClientLog(plan)
        self.events = _EventSink(self.log)

    async def start(self) -> None:
        """Begin, or go on from its last position."""
        await self.__aenter__()

    async def stop(self) -> None:
        """Go away; what it got stays."""
        if self._task is not None:
            await self.__aexit__()
            self._task = None

    async def read_stream(self) -> None:
        """Ask for a stream and read it to its end."""
        self.log.add_connection(self.last_event_id)
        await super().read_stream()


_CLIENT_BY_WIRE: Mapping[Wire, type[_Logged]] = {
    Wire.SSE: LoggedEventSource,
    Wire.NDJSON: LoggedNdjson,
    Wire.WEBSOCKET: LoggedWebSocket,
}


def create_client(
    plan: ClientPlan,
    choose_server: ServerChoice,
    http: httpx.AsyncClient | None,
    headers: Mapping[str, str],
) -> FaultClient:
    """Create the client of a plan.

    Args:
        plan: Its view and wire.
        choose_server: Returns host and port of any gateway, for the next connection.
        http: The client of HTTP/2 that it shares with others; None without a proxy: it is served
            directly then.
        headers: Further headers, such as credentials.
    """
    if plan.wire is Wire.HTTP2:
        if http is not None:
            return LoggedSecureEventSource(plan, http, headers)
        return LoggedEventSource(plan, choose_server, headers)
    return _CLIENT_BY_WIRE[plan.wire](plan, choose_server, headers)
