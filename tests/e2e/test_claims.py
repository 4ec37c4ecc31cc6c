"""Nobody is shown a record, or a field of one, that is not theirs: by random routes and claims.

On every wire, live and from the earliest record, with streams that are renewed, resumed and moved
by reloads while records are written. `support.claims` says what is whose. What it goes by is the
stream's own order: up to its next `begin` the view is the old one, from there on only the new.
Where the view stays there is no other `begin`; and nothing is lost or comes twice.

GATEWAY_CLAIMS_SEED=N plays that one; what fails names its seed, and the step it came to.
"""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from support.brokers import embedded_kafka
from support.claims import (
    TOPICS,
    ClaimRoute,
    ClientChoice,
    ReceivedRecord,
    StreamTarget,
    TokenClaims,
    ViewSegment,
    WrittenLogs,
    WrittenRecord,
)
from support.clients.raw import RawClient
from support.clients.wires import CLIENT_BY_WIRE, WireName
from support.gateways import GatewayThread, build_config, running_gateway
from support.grouped import iter_single_events
from support.issuer import AUDIENCE, ISSUER_NAME, TokenIssuer
from support.multiplex import MultiplexClient
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS = 3
PATHS = ("/w0", "/w1", "/w2", "/w3", "/w4")
CHOSEN = os.environ.get("GATEWAY_CLAIMS_SEED")
SEED = int(CHOSEN or 1)
STEPS, STEPS_BY_DAY = 60, 15
CLIENTS, HISTORY, BATCH = 14, 300, 12
PAD = 400  # characters: a history is sent in several turns, and changes come between them
CALM = 0.6  # how often all that is due is waited for before anything changes
DENIED, REMOVED = "access-changed", "route-removed"

kafka = embedded_kafka({topic: PARTITIONS for topic in TOPICS}, scope="function")
ISSUER = TokenIssuer("ES256")


class Stream:
    """What one stream has to show, and what came of it over all of its connections.

    ends: why it has to end; reason: why it did. at: its last position.
    """

    def __init__(self, path: str, choice: ClientChoice, *, earliest: bool) -> None:
        self.path = path
        self.choice = choice
        self.earliest = earliest
        self.stretches: list[ViewSegment] = []
        self.ends: str | None = None
        self.reason: str | None = None
        self.at = ""
        self._begins = 0
        self._pending: set[tuple[str, int]] = set()  # as the last begin said
        self._waiting: list[tuple[ViewSegment, ReceivedRecord]] = []

    @property
    def target(self) -> StreamTarget:
        return self.stretches[-1].target

    @property
    def url(self) -> str:
        start = "earliest" if self.earliest else "live"
        return f"{self.path}?{urlencode([('from', start), *self.choice.query_params])}"

    @property
    def over(self) -> bool:
        return self.ends is not None

    @property
    def as_told(self) -> bool:
        """Every `begin`, and its `end`, came that are due."""
        return self._begins == len(self.stretches) and self.reason == self.ends

    def begin(self, target: StreamTarget) -> None:
        """Expect one of this."""
        goes_on = bool(self.stretches) and self.target.topic == target.topic
        self.at = self.at if goes_on else ""
        fresh = self.earliest and not goes_on
        self.stretches.append(
            ViewSegment(target, is_continuation=goes_on, starts_at_earliest=fresh)
        )

    def become(self, target: StreamTarget | None, reason: str = DENIED) -> None:
        """Expect what it has to show by now; nothing at all where that is as before."""
        if target is None:
            self.ends = reason
        elif target != self.target:
            self.begin(target)

    def hear(self, kind: str, data: Mapping[str, Any]) -> None:
        assert self.reason is None, f"{kind} behind its end: {data}"
        if kind == "begin":
            assert self._begins < len(self.stretches), f"nothing changed: {data}"
            stretch = self.stretches[self._begins]
            assert data["topics"] == [stretch.target.topic]
            self._pending = {(each["topic"], each["partition"]) for each in data["pending"]}
            self._begins, stretch.begun_at = self._begins + 1, asyncio.get_running_loop().time()
        elif kind == "message":
            place = data["topic"], data["partition"], data["offset"]
            told = ReceivedRecord(
                place, data["key"], dict(data["headers"]), json.loads(data["value"])
            )
            self._waiting.append((self.stretches[self._begins - 1], told))
        elif kind == "end":
            self.reason = data["reason"]
            assert self.reason == self.ends, f"it ended: {data}"
        elif kind in ("ready", "partitions-ready"):
            # On a slow machine, a topic is read only after some have begun.
            for _, each in iter_single_events(kind, data):
                partition = each["topic"], each["partition"]
                assert partition in self._pending, f"ready, but not pending: {data}"
                self._pending.remove(partition)
        else:
            assert kind in ("position", "challenge"), f"{kind}: {data}"

    def whole(self, writings: WrittenLogs) -> bool:
        """All that has to come by now did."""
        while self._waiting and writings.accept_record(*self._waiting[0]):
            self._waiting.pop(0)
        missing = writings.find_missing(self.stretches, is_over=self.over)
        return self.as_told and not self._waiting and missing is None


class Session(ABC):
    """A connection, with its token and streams. renewal: where a new token is taken."""

    def __init__(
        self, gateway: GatewayThread, claims: TokenClaims, streams: Sequence[Stream]
    ) -> None:
        self.gateway = gateway
        self.claims = claims
        self.streams = streams
        self.renewal = ""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {ISSUER.issue_token(**self.claims.jwt_claims)}"}

    @property
    def over(self) -> bool:
        return all(stream.over for stream in self.streams)

    @abstractmethod
    async def open(self) -> None:
        """From where its streams stand."""

    @abstractmethod
    async def close(self) -> None:
        """It may be opened again."""

    @abstractmethod
    def hear(self) -> None:
        """Tell its streams what came."""

    @abstractmethod
    async def renew(self, claims: TokenClaims, ways: Mapping[str, ClaimRoute]) -> None:
        """Take a new token, or be refused."""

    async def until(self, condition: Any) -> None:
        def met() -> object:
            self.hear()
            return condition()

        await wait_until(met, self.state, WAIT_TIMEOUT_S, interval_s=0.005)

    async def told(self) -> None:
        await self.until(lambda: all(stream.as_told for stream in self.streams))

    async def whole(self, writings: WrittenLogs) -> None:
        await self.until(lambda: all(stream.whole(writings) for stream in self.streams))

    def state(self) -> str:
        lines = [
            f"{stream.url}: "
            f"{[(s.target, s.begun_at, len(s.received_locations)) for s in stream.stretches]}, "
            f"has to end: {stream.ends}, ended: {stream.reason}"
            for stream in self.streams
        ]
        return "\n".join([f"{type(self).__name__} of {self.claims}", *lines])

    def targets(
        self, claims: TokenClaims, ways: Mapping[str, ClaimRoute]
    ) -> list[StreamTarget | None]:
        """Of those of its streams that run."""
        return [
            ways[each.path].resolve_target(claims, each.choice)
            for each in self.streams
            if not each.over
        ]

    def become(self, targets: Sequence[StreamTarget | None]) -> None:
        for stream, target in zip([s for s in self.streams if not s.over], targets, strict=True):
            stream.become(target)


class Http(Session):
    """By SSE or NDJSON."""

    def __init__(self, wire: WireName, *rest: Any) -> None:
        super().__init__(*rest)
        (self.stream,) = self.streams
        self._wire = wire
        self._client: RawClient | None = None
        self._heard = 0

    async def open(self) -> None:
        self._heard, self.renewal = 0, ""
        url = self.gateway.base_url + self.stream.url
        self._client = CLIENT_BY_WIRE[self._wire](
            url, headers=self.headers, last_event_id=self.stream.at
        )
        await self._client.start()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.stop()

    def hear(self) -> None:
        assert self._client is not None
        for event in self._client.events[self._heard :]:
            self._heard += 1
            data = json.loads(event["data"] or "{}")
            self.stream.hear(event["event"], data)
            self.stream.at = event["id"]
            self.renewal = data["url"] if event["event"] == "challenge" else self.renewal

    async def renew(self, claims: TokenClaims, ways: Mapping[str, ClaimRoute]) -> None:
        assert self._client is not None
        await self.until(lambda: self.renewal)
        refused = claims.sub != self.claims.sub or not ways[self.stream.path].roles <= claims.roles
        headers = {"Authorization": f"Bearer {ISSUER.issue_token(**claims.jwt_claims)}"}
        url = self.gateway.base_url + self.renewal
        if not refused:
            self.claims = claims
            self._client.headers = self.headers  # with which it comes back if it is ended
            self.become(self.targets(claims, ways))
        async with httpx.AsyncClient(timeout=WAIT_TIMEOUT_S, trust_env=False) as http:
            answer = await http.post(url, headers=headers)
        assert answer.status_code == (403 if refused else 204), answer.text


class Socket(Session):
    """Several streams on `/ws`, or one on its own path."""

    def __init__(self, own: bool, *rest: Any) -> None:
        super().__init__(*rest)
        self.labels = {None if own else f"s{n}": each for n, each in enumerate(self.streams)}
        self._socket: MultiplexClient | None = None
        self._heard = 0

    async def open(self) -> None:
        self._heard = 0
        own = self.labels.get(None)
        path = "/ws" if own is None else own.url
        path += f"&{urlencode({'lastEventId': own.at})}" if own is not None and own.at else ""
        options = {"additional_headers": self.headers}
        self._socket = await MultiplexClient(self.gateway.base_url, path, **options).__aenter__()
        for label, stream in self.labels.items():
            if label is not None and not stream.over:
                from_there = {"lastEventId": stream.at} if stream.at else {}
                await self._socket.send_message(
                    "subscribe", id=label, path=stream.url, **from_there
                )

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.__aexit__()

    def hear(self) -> None:
        assert self._socket is not None
        for told in self._socket.messages[self._heard :]:
            self._heard += 1
            stream = self.labels.get(told.get("id"))
            if told["type"] in ("renewed", "error", "challenge", "pong") or stream is None:
                continue
            every = told["records"] if told["type"] == "records" else [told]
            for data in every:
                stream.hear("message" if told["type"] == "records" else told["type"], data)
            stream.at = told.get("position", stream.at)

    async def renew(self, claims: TokenClaims, ways: Mapping[str, ClaimRoute]) -> None:
        assert self._socket is not None
        targets = self.targets(claims, ways)
        refused = claims.sub != self.claims.sub or None in targets
        if not refused:
            self.claims = claims
            self.become(targets)
        kind = "error" if refused else "renewed"
        count = len(self._socket.get_messages(None, kind))
        await self._socket.send_message("token", jwt=ISSUER.issue_token(**claims.jwt_claims))
        await self._socket.wait_for_message(None, kind, count)


class World:
    """A gateway that runs, what is written, and who listens; what happens is drawn."""

    def __init__(self, seed: int, kafka: EmbeddedKafka, producer: AIOKafkaProducer) -> None:
        self.draw = draw = Random(seed)
        self._records = Random(seed)  # of its own: they are drawn while other things are
        self.kafka = kafka
        self.writings = WrittenLogs(PARTITIONS)
        self.sessions: list[Session] = []
        self.ended: list[Session] = []
        self.ways = {path: ClaimRoute.generate(draw, path) for path in PATHS}
        self.gateway: GatewayThread
        self._producer = producer
        self._written = 0

    @property
    def config(self) -> dict[str, Any]:
        claims = {name: name for name in ("tenant", "shelf", "region", "book")}
        guard = {
            "type": "jwt", "issuer": ISSUER_NAME, "audience": AUDIENCE, "keys": ISSUER.jwks,
            "attributes": claims, "challenge": "24h",
        }  # fmt: skip
        routes = [way.config for way in self.ways.values()]
        return build_config(self.kafka.bootstrap, TOPICS, routes, guards={"login": guard})

    async def write(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            self._written += 1
            entry = WrittenRecord.generate(self._records, self._written, PAD)._replace(
                sent_at=loop.time()
            )
            acked = await self._producer.send_and_wait(
                self._records.choice(TOPICS),
                json.dumps(entry.value).encode(),
                key=entry.key.encode() if entry.key is not None else None,
                partition=self._records.randrange(PARTITIONS),
                headers=[(name, text.encode()) for name, text in entry.headers.items()],
            )
            place = acked.topic, acked.partition, acked.offset
            self.writings.add_record(entry._replace(location=place))

    # what happens

    async def connect(self) -> None:
        """One that is let in, on any wire; a socket of two streams counts for one."""
        draw = self.draw
        kind = draw.choice(["sse", "ndjson", "own", "multiplex"])
        while True:
            claims = TokenClaims.generate(draw, draw.choice(["ada", "bob"]))
            streams = [self._stream(claims) for _ in range(2 if kind == "multiplex" else 1)]
            if all(streams):
                break
        of: Any = (self.gateway, claims, streams)
        session = Http(kind, *of) if kind in CLIENT_BY_WIRE else Socket(kind == "own", *of)
        self.sessions.append(session)
        await session.open()
        await session.told()

    def _stream(self, claims: TokenClaims) -> Stream | None:
        draw = self.draw
        way = draw.choice(list(self.ways.values()))
        fields = ("/n", "/tenant") if draw.random() < 0.2 else ()
        choice = ClientChoice(draw.choice(["a", "b"]) if draw.random() < 0.2 else None, fields)
        target = way.resolve_target(claims, choice)
        if target is None:
            return None
        stream = Stream(way.path, choice, earliest=draw.random() < 0.5)
        stream.begin(target)
        return stream

    async def renew(self) -> None:
        """As the same one, mostly, and with the same claims at times."""
        session = self.draw.choice(self.sessions)
        await session.renew(self._claims(session), self.ways)
        await session.told()

    def _claims(self, session: Session) -> TokenClaims:
        if self.draw.random() < 0.2:
            return session.claims
        other = "bob" if session.claims.sub == "ada" else "ada"
        return TokenClaims.generate(
            self.draw, other if self.draw.random() < 0.1 else session.claims.sub
        )

    async def resume(self) -> None:
        """From the last position, maybe with a token that says something else."""
        session = self.draw.choice(self.sessions)
        claims = self._claims(session)
        if None in session.targets(claims, self.ways):
            claims = session.claims
        await session.close()
        session.hear()
        session.claims = claims
        targets = session.targets(claims, self.ways)
        running = [stream for stream in session.streams if not stream.over]
        for stream, target in zip(running, targets, strict=True):
            assert target is not None
            stream.begin(target)
        await session.open()
        await session.told()

    async def reload(self) -> None:
        """Some of the routes are others by now, and one may be gone, or back."""
        for path in PATHS:
            if self.draw.random() < 0.4:
                self.ways[path] = ClaimRoute.generate(self.draw, path)
        if self.draw.random() < 0.25:
            self.ways.pop(self.draw.choice(PATHS), None)
        for session in self.sessions:
            for stream in session.streams:
                if not stream.over and stream.path not in self.ways:
                    stream.ends = REMOVED
            session.become(session.targets(session.claims, self.ways))
        await self.gateway.reload(self.config)
        for session in self.sessions:
            await session.told()

    async def step(self) -> None:
        happens = [self.renew] * 5 + [self.reload] * 2 + [self.resume] * 2
        while len(self.sessions) < CLIENTS:
            await self.connect()
        writing = asyncio.create_task(self.write(BATCH))
        try:
            if self.draw.random() < 0.5:  # else while records come
                await writing
            await self.draw.choice(happens)()
        finally:
            await writing
        if self.draw.random() < CALM:
            await self.calm()
        for session in [session for session in self.sessions if session.over]:
            await session.close()
            self.sessions.remove(session)
            self.ended.append(session)

    async def calm(self) -> None:
        for session in self.sessions:
            await session.whole(self.writings)

    async def close(self) -> None:
        for session in self.sessions + self.ended:
            await session.close()


@asynccontextmanager
async def world(seed: int, kafka: EmbeddedKafka) -> AsyncIterator[World]:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=0) as producer:
        made = World(seed, kafka, producer)
        await made.write(HISTORY)
        async with running_gateway(made.config) as made.gateway:
            try:
                yield made
            finally:
                await made.close()


@pytest.mark.parametrize("steps", [STEPS_BY_DAY, pytest.param(STEPS, marks=pytest.mark.night)])
async def test_nobody_is_shown_what_is_not_theirs_whatever_changes(
    kafka: EmbeddedKafka, steps: int
):
    done = 0
    try:
        async with world(SEED, kafka) as here:
            for done in range(steps):  # noqa: B007
                await here.step()
            await here.calm()
            for session in here.ended:
                await session.whole(here.writings)
    except Exception as error:
        error.add_note(f"GATEWAY_CLAIMS_SEED={SEED}, after {done} steps")
        raise
