"""Streams that are compressed against a dictionary of their route (RFC 9842)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from support.browser import running_browser
from support.gateways import GatewayThread, build_config, build_route, running_gateway
from support.waiting import WAIT_TIMEOUT_S
from support.zstd import FrameDecoder, build_dictionary_headers

from gateway.kafka.embedded import EmbeddedKafka

PARTITIONS, ORDERS = 3, 60
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
WHOLE = {"from": "earliest", "until": "latest"}


class LoadedDictionary(NamedTuple):
    """What a browser keeps of a dictionary."""

    content: bytes
    use: str
    headers: httpx.Headers

    @property
    def id(self) -> str:
        found = re.search(r'id="([^"]*)"', self.use)
        return found[1] if found else ""

    @property
    def request_headers(self) -> Mapping[str, str]:
        return build_dictionary_headers(self.content, self.id)


def build_order(number: int, owner: str = "ada") -> bytes:
    return json.dumps({"order": number, "owner": owner, "status": "paid", "total": 2.5}).encode()


async def produce_orders(kafka: EmbeddedKafka, numbers: Sequence[int], owner: str = "ada") -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for number in numbers:
            value = build_order(number, owner)
            await producer.send_and_wait("orders", value, owner.encode(), number % PARTITIONS)


@pytest.fixture
async def kafka(embedded: EmbeddedKafka) -> EmbeddedKafka:
    embedded.create_topic("orders", PARTITIONS + 1)  # the last one is empty
    await produce_orders(embedded, range(ORDERS))
    return embedded


def configure(kafka: EmbeddedKafka, **options: Any) -> dict[str, Any]:
    route = build_route("orders", "value", **options)
    return build_config(kafka.bootstrap, ["orders"], [route])


def browse(gateway: GatewayThread, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway.base_url, headers=headers, trust_env=False, timeout=WAIT_TIMEOUT_S
    )


@asynccontextmanager
async def serving(config: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    async with running_gateway(config) as gateway, browse(gateway) as http:
        yield http


async def load(http: httpx.AsyncClient, **headers: str) -> LoadedDictionary:
    response = await http.get("/events/orders?dictionary", headers=headers)
    response.raise_for_status()
    return LoadedDictionary(
        response.content, response.headers["use-as-dictionary"], response.headers
    )


class Body(NamedTuple):
    """A body as it came, decoded, and its coding."""

    coding: str | None
    size: int
    text: bytes

    @property
    def orders(self) -> list[int]:
        return [int(each) for each in re.findall(rb'"order": ?(\d+)', self.text)]


async def read(
    http: httpx.AsyncClient,
    dictionary: LoadedDictionary,
    *,
    accept: str = EVENTS,
    params: Mapping[str, str] = WHOLE,
    **headers: str | bytes,
) -> Body:
    """A stream to its end, for a client that has the dictionary."""
    sent = {**dictionary.request_headers, "Accept": accept, **headers}
    async with http.stream("GET", "/events/orders", headers=sent, params=params) as response:
        assert response.status_code == 200
        coding = response.headers.get("content-encoding")
        if coding != "dcz":
            return Body(coding, 0, await response.aread())
        body = b"".join([piece async for piece in response.aiter_raw()])
    return Body(coding, len(body), FrameDecoder(dictionary.content).feed(body))


@pytest.mark.parametrize("accept", [EVENTS, LINES])
async def test_a_stream_is_whole_and_a_quarter_of_its_size(kafka: EmbeddedKafka, accept: str):
    async with serving(configure(kafka)) as http:
        dictionary = await load(http)
        head = await http.head("/events/orders?dictionary")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["use-as-dictionary"] == dictionary.use
        assert dictionary.use == f'match="orders?*", id="{dictionary.id}"'
        body = await read(http, dictionary, accept=accept)
        assert body.coding == "dcz"
        assert sorted(body.orders) == list(range(ORDERS))
        assert body.size < len(body.text) / 3
        # A client that resumes gets what it missed, in the same coding.
        if accept == EVENTS:
            ids = re.findall(rb"^id: (.+)$", body.text, re.MULTILINE)
            rest = await read(http, dictionary, **{"Last-Event-ID": ids[ORDERS // 2].decode()})
            assert rest.coding == "dcz"
            assert body.orders[ORDERS // 2 :] == rest.orders


async def test_another_replica_makes_the_same_dictionary_of_its_id(kafka: EmbeddedKafka):
    config = configure(kafka)
    async with serving(config) as http, serving(config) as other:
        dictionary = await load(http)
        await produce_orders(kafka, range(ORDERS, 2 * ORDERS))
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while (body := await read(other, dictionary)).coding != "dcz":  # noqa: ASYNC110
                await asyncio.sleep(1)  # too busy to make it in time: it is tried again soon
        assert sorted(body.orders) == list(range(2 * ORDERS))
        # What a client names is offered to nobody else.
        assert (await load(other)).id != dictionary.id
        assert (await read(other, dictionary)).coding == "dcz"


async def test_many_clients_with_views_of_their_own_all_get_a_dictionary(kafka: EmbeddedKafka):
    names = [f"user-{number}" for number in range(20)]
    async with serving(configure_users(kafka, names)) as http:
        for name in names:
            assert (await load(http, Authorization=f"Bearer token-of-{name}")).content


def configure_users(kafka: EmbeddedKafka, names: Iterable[str]) -> dict[str, Any]:
    """Each of them has a view of its own."""
    users = {name: {"token": f"token-of-{name}"} for name in names}
    guard = {
        "type": "inline",
        "credentials": {"headers": {"authorization": "Bearer {credentials}"}},
        "users": users,
    }
    route = {
        **build_route("orders", "value", filters=[{"key": "${guarded['users'].identity}"}]),
        "guarded": {"users": []},
    }
    return build_config(kafka.bootstrap, ["orders"], [route], guards={"users": guard})


async def test_what_a_client_names_is_not_believed(kafka: EmbeddedKafka):
    """It is served without, and whole."""
    async with serving(configure(kafka)) as http:
        dictionary = await load(http)
        later_id = dictionary.id[:-1] + ("A" if dictionary.id[-1] != "A" else "B")
        wrong = [
            dictionary._replace(content=b"something else"),
            dictionary._replace(content=b"something else", use=f'id="{later_id}"'),
            dictionary._replace(content=b"something else", use=f'id="{"x" * 2000}"'),
            dictionary._replace(content=b"something else", use='id=""'),
        ]
        for each in wrong:
            body = await read(http, each)
            assert body.coding == "gzip" and sorted(body.orders) == list(range(ORDERS))
        for field in (":no:", "no", ":" + "?" * 44 + ":", b":" + b"\xe9" * 44 + b":"):
            body = await read(http, dictionary, **{"Available-Dictionary": field})
            assert body.coding == "gzip"
        assert (await read(http, dictionary, **{"Accept-Encoding": "gzip"})).coding == "gzip"
        assert (await read(http, dictionary, **{"Accept-Encoding": "br"})).coding is None


@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"history": "1h"}])
async def test_a_route_may_have_none(kafka: EmbeddedKafka, options: dict[str, str]):
    async with serving(configure(kafka)) as http:
        dictionary = await load(http)
    async with serving(configure(kafka, **options)) as http:
        response = await http.get("/events/orders?dictionary")
        assert response.status_code == 404
        assert "compression: dictionary" in response.json()["detail"]
        assert (await read(http, dictionary, params={"until": "latest"})).coding == "gzip"


async def test_a_client_has_a_dictionary_of_what_it_may_see_alone(kafka: EmbeddedKafka):
    """Nor does another client's help it to guess what the other sees."""
    await produce_orders(kafka, range(ORDERS, ORDERS + 30), "bob")
    async with serving(configure_users(kafka, ["ada", "bob"])) as http:
        ada, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in ("ada", "bob"))
        of_ada, of_bob = await load(http, **ada), await load(http, **bob)
        assert b'"owner": "ada"' in of_ada.content and b"bob" not in of_ada.content
        assert b'"owner": "bob"' in of_bob.content and b"ada" not in of_bob.content
        assert of_ada.headers["cache-control"] == "private, max-age=3600"
        assert {"Cookie", "Authorization"} <= set(of_ada.headers["vary"].split(", "))
        assert (await read(http, of_ada, **ada)).coding == "dcz"
        body = await read(http, of_ada, **bob)
        assert body.coding == "gzip" and sorted(body.orders) == list(range(ORDERS, ORDERS + 30))
        refused = await http.get("/events/orders?dictionary")
        assert refused.status_code == 401


async def test_a_client_that_filters_uses_the_dictionary_of_its_route(kafka: EmbeddedKafka):
    async with serving(configure(kafka, clientFilters=True, clientFields=True)) as http:
        dictionary = await load(http)
        params = {**WHOLE, "filter": "/order=7", "fields": "/order"}
        body = await read(http, dictionary, params=params)
        assert body.coding == "dcz" and body.orders == [7]


async def test_a_topic_without_records_has_one_that_is_soon_replaced(embedded: EmbeddedKafka):
    embedded.create_topic("orders", PARTITIONS)
    async with serving(configure(embedded)) as http:
        dictionary = await load(http)
        await produce_orders(embedded, range(3))
        body = await read(http, dictionary)
        assert body.coding == "dcz" and sorted(body.orders) == [0, 1, 2]


async def test_a_reload_that_hides_fields_ends_the_use_of_dictionaries_that_hold_them(
    kafka: EmbeddedKafka,
):
    async with running_gateway(configure(kafka)) as gateway, browse(gateway) as http:
        dictionary = await load(http)
        assert b"ada" in dictionary.content
        await gateway.reload(configure(kafka, fields=["/order"]))
        body = await read(http, dictionary)
        assert body.coding == "gzip" and b"ada" not in body.text
        assert b"ada" not in (await load(http)).content


@pytest.mark.needs("chromium")
async def test_a_browser_loads_the_dictionary_and_its_event_source_uses_it(kafka: EmbeddedKafka):
    """An EventSource of a page that has nothing but a link to the dictionary."""
    async with running_gateway(configure(kafka)) as gateway:
        origin_of_page = gateway.base_url
        page = f"""<!doctype html><link rel="compression-dictionary"
            href="{origin_of_page}/events/orders?dictionary" crossorigin>"""
        async with running_browser(records_responses=True) as tab:
            await tab.open_url(f"{origin_of_page}/health/live")
            await tab.run_script("document.head.innerHTML = arguments[0]", page)
            # The browser loads it when it has time, and then says so in requests.
            await tab.wait_for_script(
                "const options = {headers: {Accept: 'text/event-stream'}};"
                "return fetch('/events/orders?until=latest', options)"
                ".then((response) => response.headers.get('content-encoding') === 'dcz')",
                WAIT_TIMEOUT_S,
            )
            await tab.run_script(
                "window.orders = [];"
                "const source = new EventSource('/events/orders?from=earliest');"
                "source.onmessage = ({ data }) => window.orders.push(JSON.parse(data).order);"
            )
            await tab.wait_for_script(f"return orders.length === {ORDERS}", WAIT_TIMEOUT_S)
            for number in range(ORDERS, ORDERS + 3):
                await produce_orders(kafka, [number])
                await tab.wait_for_script(f"return orders.includes({number})", WAIT_TIMEOUT_S)
            assert sorted(await tab.run_script("return orders")) == list(range(ORDERS + 3))
            responses = [each for each in await tab.read_responses() if "orders" in each.path]
            assert responses[-1].coding == "dcz"
