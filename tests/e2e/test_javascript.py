"""The gateway's JavaScript module in Node, Chromium and Firefox: exact over cuts, one connection
for all tabs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import StringIO
from typing import Any

import pytest
from ruamel.yaml import YAML
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from support.app_server import running_app
from support.browser import Browser, running_browser, running_firefox
from support.clients.client import ReceivedEvent
from support.clients.js_module import ModuleClient
from support.clients.module_pages import ModulePages, serve_pages
from support.gateways import GatewayThread, build_config, build_route, running_gateway
from support.oracle import StreamOracle, read_records
from support.received import parse_events
from support.tcp_proxy import ProxyConnection, TcpProxy
from support.waiting import WAIT_TIMEOUT_S, wait_until
from websockets import Subprotocol
from websockets.asyncio.server import ServerConnection, serve

from gateway.config import Route, loads
from gateway.core.log.record import TopicPartition
from gateway.errors import RequestError
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.app.app import create_app

TOPIC = "orders"
PARTITIONS = 3
START = {TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)}
OPEN = {"access-control": {"policy": "cross-origin"}}
TRANSPORTS = pytest.mark.parametrize("transport", ["websocket", "eventsource"])
in_node = pytest.mark.needs("node", "npm")


@pytest.fixture
async def oracle(embedded: EmbeddedKafka) -> AsyncIterator[StreamOracle]:
    embedded.create_topic(TOPIC, PARTITIONS)
    async with StreamOracle(",".join(embedded.bootstrap)) as oracle:
        yield oracle


@pytest.fixture
async def gateway(embedded: EmbeddedKafka, oracle: StreamOracle) -> AsyncIterator[GatewayThread]:
    routes = [
        build_route(TOPIC, "value", produce=True),
        build_route(TOPIC, "envelope", clientFilters=True),
        {"when": [{"path": "/beating"}], "with": {"topic": TOPIC, "heartbeat": "100ms"}},
    ]
    async with running_gateway(
        build_config(embedded.bootstrap, [TOPIC], routes, listen=OPEN)
    ) as it:
        yield it


@asynccontextmanager
async def way_to(gateway: GatewayThread) -> AsyncIterator[TcpProxy]:
    async with TcpProxy("127.0.0.1", gateway.port) as proxy:
        yield proxy


def complete(oracle: StreamOracle, form: str = "envelope") -> Any:
    """Has a client all that was acknowledged?"""
    return lambda events: not oracle.list_missing(parse_events(events, form))


def named(events: Sequence[ReceivedEvent], name: str) -> list[Any]:
    return [json.loads(event["data"]) for event in events if event["event"] == name]


# In Node


@in_node
@TRANSPORTS
async def test_a_stream_is_exact_over_cuts_at_any_byte(
    transport: str, gateway: GatewayThread, oracle: StreamOracle
):
    await oracle.produce_records(TOPIC, 20)
    url = f"{gateway.base_url}/records/{TOPIC}"
    async with ModuleClient(url, {"transport": transport, "from": "earliest"}) as client:
        await client.wait_for_events(complete(oracle))
        for times, count in enumerate((1, 700, 5000), 2):
            client.cut_after(count)
            while client.proxy.is_cut_pending:  # an EventSource's bytes are compressed
                await oracle.produce_records(TOPIC, 60)
            await client.wait_until_live(times)
        await client.wait_for_events(complete(oracle))
        oracle.check_events(client.events, start=START)
        assert not client.errors
        middle = client.events[len(client.events) // 2]["id"]
        async with ModuleClient(url, {"transport": transport, "position": middle}) as later:
            await later.wait_for_events(1)
            assert named(later.events, "begin")
            last = client.events[-1]
            await later.wait_for_events(lambda events: last["data"] in [e["data"] for e in events])
            both = [*client.events[: len(client.events) // 2 + 1], *later.events]
            seen = {event["data"] for event in both if event["event"] == "message"}
            assert seen == {e["data"] for e in client.events if e["event"] == "message"}


@in_node
async def test_a_gateway_that_ends_costs_no_record(gateway: GatewayThread, oracle: StreamOracle):
    url = f"{gateway.base_url}/records/{TOPIC}"
    async with ModuleClient(url, {"transport": "websocket"}) as client:
        await client.wait_until_live()
        await oracle.produce_records(TOPIC, 20)
        await client.wait_for_events(complete(oracle))
        await gateway.drain()
        await oracle.produce_records(TOPIC, 20)
        await gateway.start()
        await client.wait_for_events(complete(oracle))
        oracle.check_events(client.events, start=START)
        assert ("reconnecting", "drain") in client.states


@in_node
async def test_after_a_drain_it_comes_back_when_the_gateway_said():
    """It came back within 2 s, whatever the gateway said: a rolling restart had all at once."""
    retry_ms, connected_at = 3000, []

    async def drain(socket: ServerConnection) -> None:
        connected_at.append(asyncio.get_running_loop().time())
        label = json.loads(await socket.recv())["id"]
        begin = {"type": "begin", "id": label, "position": "A", "topics": [], "pending": []}
        end = {"type": "end", "id": label, "position": "A", "reason": "drain", "retry": retry_ms}
        for message in (begin, end):
            await socket.send(json.dumps(message))
        await socket.close(1012)

    async with serve(drain, "127.0.0.1", 0, subprotocols=[Subprotocol("gateway.v1")]) as server:
        (listening,) = server.sockets
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/records/{TOPIC}"
        async with ModuleClient(url, {"transport": "websocket"}):
            await wait_until(lambda: len(connected_at) > 1, "the second connection")
    assert connected_at[1] - connected_at[0] >= retry_ms / 1000


@in_node
@TRANSPORTS
async def test_a_change_of_filter_loses_nothing_that_matches_both(
    transport: str, gateway: GatewayThread, oracle: StreamOracle
):
    """From `begin` with `changed` on, only the new view counts."""
    url = f"{gateway.base_url}/records/{TOPIC}"
    async with ModuleClient(url, {"transport": transport}) as client:
        await client.wait_until_live()
        await oracle.produce_records(TOPIC, 20)
        client.call_method("change", {"filter": {"value": {"/n": {"gte": 30}}}})
        await oracle.produce_records(TOPIC, 40)
        await client.wait_for_events(complete(oracle_of(oracle, 30)))
        await client.wait_for_events(lambda events: len(named(events, "begin")) > 1)
        await oracle.produce_records(TOPIC, 5)
        await client.wait_for_events(complete(oracle_of(oracle, 30)))
        begins = [n for n, event in enumerate(client.events) if event["event"] == "begin"]
        assert "changed" not in json.loads(client.events[begins[0]]["data"])
        assert json.loads(client.events[begins[-1]]["data"])["changed"] is True
        late = named(client.events[begins[-1] :], "message")
        assert all(json.loads(record["value"])["n"] >= 30 for record in late)
        matching = oracle_of(oracle, 30)
        both = [e for e in client.events if e["event"] != "message" or number(e) >= 30]
        matching.check_events(both)


def number(event: ReceivedEvent) -> int:
    return int(json.loads(json.loads(event["data"])["value"])["n"])


def oracle_of(oracle: StreamOracle, least: int) -> StreamOracle:
    """What of it has a serial number of at least so much."""
    part = StreamOracle()
    every = oracle.list_acked()
    part.add_acked(each for each in every if json.loads(each.value or b"")["n"] >= least)
    return part


@in_node
async def test_a_connection_that_died_without_a_word_is_replaced(
    gateway: GatewayThread, embedded: EmbeddedKafka
):
    """Heartbeats were comments, which no page sees: an EventSource stayed live for ever."""
    options = {"transport": "eventsource"}
    async with ModuleClient(f"{gateway.base_url}/beating", options) as client:
        await client.wait_until_live()
        client.proxy.stall()
        await wait_until(lambda: ("reconnecting", None) in client.states, client.describe_state)
        client.proxy.unstall()
        await client.wait_until_live(2)


@in_node
async def test_a_stream_is_stale_while_kafka_is_away(
    gateway: GatewayThread, embedded: EmbeddedKafka
):
    """Nothing was told of an outage of all brokers, however long it was."""
    async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}") as client:
        await client.wait_until_live()
        embedded.down(1)
        await wait_until(lambda: "stale" in dict(client.states), client.describe_state)
        embedded.up(1)
        await client.wait_until_live(2)
        assert client.live_reasons == [None, "recovered"]


@in_node
async def test_a_write_that_was_cut_off_before_its_answer_is_repeated_and_written_once(
    gateway: GatewayThread, embedded: EmbeddedKafka
):
    servers = ",".join(embedded.bootstrap)
    async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}") as client:
        await client.wait_until_live()
        client.proxy.stall()
        record = {"key": "ada", "value": {"order": 1}}
        client.call_method("produce", record)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not await read_records(servers, TOPIC, isolation="read_uncommitted"):
                assert not client.results_by_argument
        assert not client.results_by_argument
        client.cut()
        client.proxy.unstall()
        answer = await client.wait_for_result(record)
        (written,) = await read_records(servers, TOPIC, isolation="read_uncommitted")
        assert (written.key, written.value) == (b"ada", b'{"order":1}')
        place = {"topic": TOPIC, "partition": written.tp.partition, "offset": written.offset}
        assert answer == {**place, "repeated": True}
        await client.wait_for_events(lambda events: named(events, "message") == [{"order": 1}])


@in_node
@TRANSPORTS
async def test_a_page_may_parse_the_texts_of_records_itself(
    transport: str, gateway: GatewayThread, oracle: StreamOracle
):
    """Two ids of 64 bits became one, and a page could not have the digits."""
    values = [
        '{"id":73314510714175490,"price":1.50}', '{"id": 73314510714175488, "a": [[1], {"b": []}]}',
        '{"note":"]},{\\"\\\\","half":"\\ud83d"}', "plain, ]}", '"quoted"',
        "12345678901234567890", "[]",
    ]  # fmt: skip
    texts = [*values[:3], '"plain, ]}"', *values[4:]]
    url = f"{gateway.base_url}/events/{TOPIC}"
    async with ModuleClient(url) as writer:
        for value in values:
            record = {"key": "ada", "value": value}
            writer.call_method("produce", record)
            await writer.wait_for_result(record)
    options = {"transport": transport, "from": "earliest", "texts": True}
    async with ModuleClient(url, options) as client:
        await client.wait_for_events(lambda events: len(named(events, "message")) == len(texts))
        assert named(client.events, "message") == [{"text": text} for text in texts]
        # A stream of the same view that wants no texts gets none.
        client.call_method("twin", {"transport": transport, "from": "earliest"})
        await wait_until(lambda: len(client.twin_events) >= len(texts), client.describe_state)
        (first, *_, last) = [json.loads(event["data"]) for event in client.twin_events]
        assert (first["price"], last) == (1.5, [])


@in_node
@TRANSPORTS
async def test_a_refused_position_is_told_and_a_refused_path_is_final(
    transport: str, gateway: GatewayThread
):
    options = {"transport": transport, "position": "of-something-else"}
    async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}", options) as client:
        await client.wait_until_live()
        await client.wait_for_events(lambda events: named(events, "gap"))
        (gap,) = named(client.events, "gap")
        assert gap["reason"] == "position-refused"
    async with ModuleClient(f"{gateway.base_url}/nothing", {"transport": transport}) as client:
        await wait_until(lambda: client.is_closed and client.errors, client.describe_state)
        assert client.states == [("connecting", None), ("closed", "unknown-path")]
        assert len(client.errors) == 1


@in_node
@TRANSPORTS
async def test_without_a_token_a_stream_is_unauthorized(transport: str, embedded: EmbeddedKafka):
    """By EventSource it was forbidden, for which no page asks its user to log in."""
    embedded.create_topic(TOPIC, 1)
    guards = {"dev": {"type": "inline", "users": {"ada": {"token": "t"}}}}
    routes = [build_route(TOPIC, "value") | {"guarded": ["dev"]}]
    async with running_gateway(
        build_config(embedded.bootstrap, [TOPIC], routes, guards=guards)
    ) as gateway:
        options = {"transport": transport}
        async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}", options) as client:
            await wait_until(lambda: client.is_closed and client.errors, client.describe_state)
            assert client.states == [("connecting", None), ("closed", "unauthorized")]


@in_node
@TRANSPORTS
async def test_a_wrong_query_takes_no_position_away(transport: str, gateway: GatewayThread):
    """An EventSource that was refused for its query forgot the position, and invented a gap."""
    async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}") as client:
        await client.wait_until_live()
        await wait_until(lambda: client.last_event_id, client.describe_state)
        position = client.last_event_id
    options = {"transport": transport, "position": position}
    async with ModuleClient(f"{gateway.base_url}/events/{TOPIC}?customer=1", options) as client:
        await wait_until(lambda: client.is_closed and client.errors, client.describe_state)
        assert client.states == [("connecting", None), ("closed", "bad-request")]
        assert not named(client.events, "gap")


class NoWebSockets(TcpProxy):
    """A network that knows HTTP only."""

    async def iter_requests(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        async for piece in super().iter_requests(reader, link):
            if b"upgrade: websocket" in piece.lower():
                link.abort_both()
                return
            yield piece


@in_node
async def test_where_no_websocket_comes_through_it_is_an_event_source(
    gateway: GatewayThread, oracle: StreamOracle
):
    client = ModuleClient(f"{gateway.base_url}/records/{TOPIC}", {"from": "earliest"})
    client.proxy = NoWebSockets()
    async with client:
        await client.wait_until_live()
        await oracle.produce_records(TOPIC, 10)
        await client.wait_for_events(complete(oracle))
        client.cut()
        await oracle.produce_records(TOPIC, 10)
        await client.wait_for_events(complete(oracle))
        oracle.check_events(client.events, start=START)
        assert not client.errors


class Behind(TcpProxy):
    """Every message of the second subscription comes some messages late.

    merged: the module has given that up.
    """

    LATE = 10
    merged = False

    async def iter_responses(self, reader: Any, link: ProxyConnection) -> AsyncIterator[bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        yield head
        late: list[bytes] = []
        async for frame in frames(reader):
            if b'"id":"s2"' not in frame[:64]:
                yield frame
                continue
            self.merged |= b'"unsubscribed"' in frame
            late.append(frame)
            if b'"begin"' in frame or len(late) > self.LATE:
                yield late.pop(0)


async def frames(reader: Any) -> AsyncIterator[bytes]:
    """Of a server, whole; until the end of the connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            head = await reader.readexactly(2)
            wide = {126: 2, 127: 8}.get(head[1], 0)
            head += await reader.readexactly(wide)
            size = int.from_bytes(head[2:]) if wide else head[1]
            yield head + await reader.readexactly(size)


@in_node
async def test_of_two_equal_streams_the_one_behind_is_handed_on_what_it_lacks(
    gateway: GatewayThread, oracle: StreamOracle
):
    """They never stand at one position, and become one subscription all the same."""
    client = ModuleClient(f"{gateway.base_url}/records/{TOPIC}", {"from": "earliest"})
    client.proxy = network = Behind()
    async with client:
        await oracle.produce_records(TOPIC, 20)
        await client.wait_for_events(complete(oracle))
        half = len(client.events) // 2
        client.call_method("twin", {"position": client.events[half]["id"]})
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not network.merged:
                await oracle.produce_records(TOPIC, 1)
        await oracle.produce_records(TOPIC, 10)
        await client.wait_for_events(complete(oracle))
        oracle.check_events(client.events, start=START)
        rest = [event["data"] for event in client.events[half + 1 :]]
        await wait_until(lambda: len(client.twin_events) >= len(rest), client.describe_state)
        oracle.check_events(client.twin_events)
        assert set(rest) <= {event["data"] for event in client.twin_events}


@in_node
async def test_a_token_is_renewed_on_the_same_connection_before_it_expires(
    embedded: EmbeddedKafka, oracle: StreamOracle
):
    """The first one is refused, as if it had been revoked: another one is asked for."""
    seen: list[int] = []

    async def access(
        route: Route, params: Any, connection: HTTPConnection, token: str | None
    ) -> None:
        assert token is not None
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        seen.append(claims["jti"])
        if claims["jti"] == 1 or claims["exp"] < time.time():
            raise RequestError(401, "Unauthorized", "bring a token that holds")

    text = StringIO()
    YAML().dump(build_config(embedded.bootstrap, [TOPIC]), text)
    app = create_app(loads(text.getvalue()), access=access)
    async with (
        app.router.lifespan_context(app),
        running_app(app) as url,
        ModuleClient(f"{url}/records/{TOPIC}", {"lifetime": 2}) as client,
    ):
        await client.wait_until_live()
        assert len(client.proxy.accepted_at) == 1
        await wait_until(lambda: len(set(seen)) >= 4, lambda: f"{seen} {client.describe_state()}")
        await oracle.produce_records(TOPIC, 10)
        await client.wait_for_events(complete(oracle))
        oracle.check_events(client.events, start=START)
        assert (len(client.proxy.accepted_at), client.open_count) == (1, 1)


@in_node
async def test_an_event_source_is_renewed_with_what_its_browser_sends(
    embedded: EmbeddedKafka, oracle: StreamOracle
):
    """Who comes first is shown the keys of one tenant, who comes again those of another."""
    asked: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        posts = len(asked) > 1
        ending = {} if posts else {"expires": time.time() + 600}
        tenant = {"attributes": {"tenant": "b" if posts else "a"}}
        await JSONResponse({"identity": "ada", **tenant, **ending})(scope, receive, send)

    own = [{"key": "${guarded['app'].attributes.tenant}"}]
    route = {
        "when": [{"path": "/mine"}],
        "guarded": {"app": []},
        "with": {"topic": TOPIC, "filters": own, "format": "envelope"},
    }
    async with running_app(application) as app:
        guard = {
            "type": "http", "url": app, "challenge": "24h", "attributes": ["tenant"],
            "forward": {"headers": ["accept"]}, "timeout": "30s", "cache": "0s",
        }  # fmt: skip
        config = build_config(embedded.bootstrap, [TOPIC], [route], guards={"app": guard})
        async with running_gateway(config) as gateway:
            options = {"transport": "eventsource"}
            async with ModuleClient(f"{gateway.base_url}/mine", options) as client:
                await client.wait_for_events(lambda _: len(named(client.events, "begin")) >= 2)
                await oracle.produce_records(TOPIC, 1, key=b"a")
                await oracle.produce_records(TOPIC, 1, key=b"b")
                await client.wait_for_events(lambda _: named(client.events, "message"))
                (told,) = named(client.events, "message")
                assert told["key"] == "b" and named(client.events, "begin")[1]["changed"]


# In browsers


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("share", ["worker", "channel"])
async def test_six_tabs_share_one_connection_and_closing_the_leading_one_loses_nothing(
    share: str, gateway: GatewayThread, oracle: StreamOracle
):
    """Five of one stream, each from where it likes, one of another; a cut; the first tab closed
    while records come. No tab is left: no connection is."""
    async with (
        way_to(gateway) as proxy,
        serve_pages(f"http://{proxy.address}") as pages,
        running_browser() as tabs,
    ):
        await oracle.produce_records(TOPIC, 20)
        window = (await tabs.list_tabs())[0]
        first = await open_all(tabs, pages, oracle, share)
        await has_one_connection(proxy)
        assert len(proxy.accepted_at) == 1
        await is_sent_once(pages, proxy, oracle)
        proxy.cut()
        await oracle.produce_records(TOPIC, 20)
        await are_complete(pages, oracle, EARLY, FORMS)
        await has_one_connection(proxy)
        assert len(proxy.accepted_at) == 2
        writing = asyncio.create_task(write_slowly(oracle))
        await tabs.switch_to_tab(first)
        await tabs.close_tab()
        await writing
        left = {tab: start for tab, start in EARLY.items() if tab != "t1"}
        await are_complete(pages, oracle, left, FORMS)
        await has_one_connection(proxy)
        await tabs.switch_to_tab((await tabs.list_tabs())[-1])
        if share == "channel":
            await the_leading_tab_is_ousted(tabs, proxy, oracle)
            await are_complete(pages, oracle, left, FORMS)
            await has_one_connection(proxy)
        for tab in await tabs.list_tabs():
            if tab != window:
                await tabs.switch_to_tab(tab)
                await tabs.close_tab()
        await wait_until(lambda: proxy.connection_count == 0, "the end of the connection")


EARLY = {"t1": True, "t2": True, "t3": False, "t4": False, "t5": True, "t6": True}
FORMS = {"t5": "value"}


async def has_one_connection(proxy: TcpProxy) -> None:
    """A moment after a cut the proxy still carries the old one."""
    await wait_until(lambda: proxy.connection_count == 1, "one connection")


async def open_all(tabs: Browser, pages: ModulePages, oracle: StreamOracle, share: str) -> str:
    """The handle of the first."""
    first = ""
    for tab, early in EARLY.items():
        path = f"/events/{TOPIC}" if tab in FORMS else f"/records/{TOPIC}"
        opened = pages.build_url(tab, path, share=share, **({"from": "earliest"} if early else {}))
        writing = asyncio.create_task(
            oracle.produce_records(TOPIC, 10) if early else asyncio.sleep(0)
        )
        handle = await tabs.open_tab(opened)
        first = first or handle
        await pages.wait_until_live(tab)
        await writing
    await are_complete(pages, oracle, EARLY, FORMS)
    return first


async def is_sent_once(pages: ModulePages, proxy: TcpProxy, oracle: StreamOracle) -> None:
    """Equal streams are one subscription, once they stand together: of six, two are sent."""
    await oracle.produce_records(TOPIC, 3)
    await are_complete(pages, oracle, EARLY, FORMS)
    before, size = proxy.bytes_to_client, 0
    for _ in range(40):
        noise = base64.b64encode(os.urandom(1500)).decode()
        size += sum(
            len(each.value or b"")
            for each in await oracle.produce_records(TOPIC, 1, fields={"noise": noise})
        )
    await are_complete(pages, oracle, EARLY, FORMS)
    sent = proxy.bytes_to_client - before
    assert 1.2 * size < sent < 2.6 * size  # compressed or not


async def are_complete(
    pages: ModulePages, oracle: StreamOracle, early: dict[str, bool], forms: dict[str, str]
) -> None:
    """Each of these tabs has all from its start on, once, in order."""
    for tab, from_start in early.items():
        form = forms.get(tab, "envelope")
        last = {each.value for each in oracle.list_acked()} if from_start else set(newest(oracle))

        def has_all(events: Sequence[ReceivedEvent], form: str = form, last: Any = last) -> bool:
            return last <= {getattr(item, "value", None) for item in parse_events(events, form)}

        await pages.wait_for_events(tab, has_all)
        start = START if from_start else None
        oracle.check_events(pages[tab].events, format=form, start=start)
        assert not pages[tab].errors


def newest(oracle: StreamOracle) -> list[bytes | None]:
    """The last record of each partition."""
    return [oracle.list_acked(tp)[-1].value for tp in START]


async def the_leading_tab_is_ousted(tabs: Browser, proxy: TcpProxy, oracle: StreamOracle) -> None:
    """As one is that its browser froze: its lock is taken away, and it follows from then on."""
    before = len(proxy.accepted_at)
    writing = asyncio.create_task(write_slowly(oracle))
    await tabs.run_script("navigator.locks.request('gateway.js/3 leader', {steal: true}, () => {})")
    await wait_until(lambda: len(proxy.accepted_at) > before, "the next one's connection")
    await writing


async def write_slowly(oracle: StreamOracle) -> None:
    for _ in range(20):
        await oracle.produce_records(TOPIC, 3)
        await asyncio.sleep(0.05)


@pytest.mark.needs("chromium")
async def test_streams_of_their_own_are_exact_over_cuts_and_a_reload_of_the_page(
    gateway: GatewayThread, oracle: StreamOracle
):
    """Both transports, in two tabs; the position is kept in sessionStorage."""
    async with (
        way_to(gateway) as proxy,
        serve_pages(f"http://{proxy.address}") as pages,
        running_browser() as tabs,
    ):
        await oracle.produce_records(TOPIC, 10)
        urls = {
            kind: pages.build_url(
                kind,
                f"/records/{TOPIC}",
                **{"from": "earliest", "transport": kind, "share": False, "keep": "orders"},
            )
            for kind in ("websocket", "eventsource")
        }
        both = dict.fromkeys(urls, True)
        handles = {kind: await tabs.open_tab(url) for kind, url in urls.items()}
        for count in (200, 3000):
            await are_complete(pages, oracle, both, {})
            proxy.cut_after(count)
            await oracle.produce_records(TOPIC, 40)
        await are_complete(pages, oracle, both, {})
        await wait_until(lambda: proxy.connection_count == 2, "a connection each")
        for kind, url in urls.items():
            await tabs.switch_to_tab(handles[kind])
            await tabs.open_url("about:blank")
            await oracle.produce_records(TOPIC, 10)
            await tabs.open_url(url)
        await are_complete(pages, oracle, both, {})


@pytest.mark.night
@pytest.mark.needs("firefox")
async def test_firefox_shares_too(gateway: GatewayThread, oracle: StreamOracle):
    """Two tabs by a worker and two by an elected one, each pair with a connection, and an
    EventSource of its own."""
    await oracle.produce_records(TOPIC, 10)
    async with (
        way_to(gateway) as by_worker,
        way_to(gateway) as by_channel,
        way_to(gateway) as alone,
        serve_pages("") as pages,
    ):
        urls = []
        proxies = {"worker": by_worker, "channel": by_channel, "alone": alone}
        for share, proxy in proxies.items():
            pages.gateway_url = f"http://{proxy.address}"
            for tab in ("a", "b") if share != "alone" else ("a",):
                options: dict[str, Any] = {"from": "earliest", "share": share}
                if share == "alone":
                    options |= {"share": False, "transport": "eventsource"}
                urls.append(pages.build_url(share + tab, f"/records/{TOPIC}", **options))
        every = dict.fromkeys(["workera", "workerb", "channela", "channelb", "alonea"], True)
        async with running_firefox(*urls):
            await are_complete(pages, oracle, every, {})
            for proxy in proxies.values():
                await has_one_connection(proxy)
                assert len(proxy.accepted_at) == 1
                proxy.cut()
            await oracle.produce_records(TOPIC, 20)
            await are_complete(pages, oracle, every, {})
            for proxy in proxies.values():
                await has_one_connection(proxy)
