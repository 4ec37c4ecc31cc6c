"""The list of streams: its lines work as printed, and its page in a browser."""

from __future__ import annotations

import asyncio
import json
import shlex
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from support.browser import ENTER, TAB, Browser, running_browser
from support.gateways import GatewayThread, build_config, running_gateway
from support.records import RecordToSend, produce_records
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

MARKUP = "<img src=x onerror=alert(1)>"
RECORDS = [
    RecordToSend(json.dumps({"order": n, "note": MARKUP}).encode(), b"ada", partition=0)
    for n in range(20)
]
TOMBSTONE = RecordToSend(None, b"ada", partition=0)


def config(kafka: EmbeddedKafka) -> dict[str, Any]:
    """The same topic in every format, and a path with a parameter."""
    own = {"topic": "orders", "filters": [{"key": "${params.customer}"}], "heartbeat": "500ms"}
    return build_config(
        kafka.bootstrap,
        [{"name": "orders", "partitionReadyTimeout": "200ms"}, {"name": "json", **JSON}],
        [
            {"when": [{"path": "/events/orders"}], "with": {"topic": "orders"}},
            {"when": [{"path": "/events/orders/{customer}"}], "with": own},
            *(
                {"when": [{"path": f"/{form}"}], "with": {"topic": "orders", "format": form}}
                for form in ("envelope", "cloudevents")
            ),
            {"when": [{"path": "/json"}], "with": {"topic": "json"}},
        ],
        name="shop",
        kafka={"bootstrap": ["orders"]},
    )


JSON = {"value": {"model": "json"}}


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[EmbeddedKafka, GatewayThread]]:
    with EmbeddedKafka(topics={"orders": 2, "json": 1}, fetch_version=11) as kafka:
        await produce_records(kafka.bootstrap, "json", [RECORDS[0]])
        async with running_gateway(config(kafka)) as gateway:
            yield kafka, gateway


# The lines


async def says(line: str, wanted: bytes) -> bool:
    """Whether a line of a shell says that; it is ended then."""
    words = ("timeout", "40", *shlex.split(line), "--noproxy", "*", "-sS")
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        async for said in process.stdout:
            if wanted in said:
                return True
        return False
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


@pytest.mark.needs("curl")
async def test_curl_is_told_the_lines_and_they_work_as_printed():
    async with shop() as (kafka, gateway):
        await produce_records(kafka.bootstrap, "orders", RECORDS)
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--noproxy", "*", f"{gateway.base_url}/", stdout=PIPE
        )
        told = json.loads((await process.communicate())[0])
        examples = [each for stream in told["streams"] for each in stream["examples"]]
        for kind, wanted in (("sse", b"event: begin"), ("ndjson", b'{"@end":{"reason":"until"')):
            lines = [each["line"] for each in examples if each["transport"] == kind]
            assert len(lines) == 5
            for line in lines:
                assert await says(line.replace("{customer}", "ada"), wanted), line
        lines = [each["line"] for each in examples]
        assert shlex.split(lines[0]) == ["curl", "-N", f"{gateway.base_url}/events/orders"]


# The page

CARD = "document.querySelector('[data-path=\"{}\"]')"
FOCUS = """
const it = document.activeElement;
return [it.closest('article')?.dataset.path, it.name || it.className].join(' ')"""


@pytest.fixture
async def tab() -> AsyncIterator[Browser]:
    async with running_browser() as tab:
        yield tab


async def shows(tab: Browser, condition: str) -> None:
    await tab.wait_for_script(condition, WAIT_TIMEOUT_S)


async def tab_to(tab: Browser, wanted: str) -> None:
    """By the tab key alone; what has the focus can be seen to have it."""
    for _ in range(60):
        if await tab.run_script(FOCUS) == wanted:
            style = "return getComputedStyle(document.activeElement).outlineStyle"
            assert await tab.run_script(style) == "solid"
            return
        await tab.press_keys(TAB)
    raise AssertionError(f"no way to {wanted} by the tab key")


@pytest.mark.needs("chromium")
async def test_a_stream_is_tried_by_keys_alone_and_shows_text_never_markup(tab: Browser):
    async with shop() as (kafka, gateway):
        await produce_records(kafka.bootstrap, "orders", [*RECORDS, TOMBSTONE])
        await tab.open_url(f"{gateway.base_url}/")
        path = "/events/orders/{customer}"
        card = CARD.format(path)
        await tab_to(tab, f"{path} customer")
        await tab.press_keys("ada")
        await tab_to(tab, f"{path} from")
        await tab.press_keys("earliest")
        line = await tab.run_script(f"return {card}.querySelector('code').textContent")
        assert line == f"curl -N '{gateway.base_url}/events/orders/ada?from=earliest'"
        snippet = await tab.run_script(
            f"return {card}.querySelector('[data-snippet] code').textContent"
        )
        assert f'("{gateway.base_url}/events/orders/ada?from=earliest", {{' in snippet
        await tab_to(tab, f"{path} try")
        await tab.press_keys(ENTER)
        await shows(tab, f"return {card}.querySelectorAll('.record').length === {len(RECORDS)}")
        await shows(tab, f"return {card}.querySelector('.log [data-event=delete].control')")
        assert await tab.run_script(f"return {card}.querySelector('[data-event=begin]').className")
        assert MARKUP in await tab.run_script(
            f"return {card}.querySelector('.record code').textContent"
        )
        assert await tab.run_script("return document.querySelectorAll('main img').length") == 0
        state = f"{card}.querySelector('[role=status]')"
        await shows(tab, f"return {state}.textContent === 'live, {len(RECORDS)} records'")
        await produce_records(kafka.bootstrap, "orders", [RECORDS[0]])
        more = len(RECORDS) + 1
        await shows(tab, f"return {card}.querySelectorAll('.record').length === {more}")
        await tab.press_keys(ENTER)
        await shows(tab, f"return {state}.textContent === 'stopped'")
        assert await tab.run_script(f"return {card}.querySelector('.try').textContent") == "Try it"


@pytest.mark.needs("chromium")
async def test_the_page_fits_a_phone_and_is_dark_where_that_is_preferred(tab: Browser):
    async with shop() as (kafka, gateway):
        await produce_records(kafka.bootstrap, "orders", RECORDS)
        for width, dark in ((1280, False), (390, True)):
            await tab.emulate_screen(width=width, height=844, is_dark=dark)
            await tab.open_url(f"{gateway.base_url}/")
            card = CARD.format("/events/orders")
            await tab.run_script(f"{card}.querySelector('[name=from]').value = 'earliest'")
            await tab.run_script(f"{card}.querySelector('.try').click()")
            await shows(tab, f"return {card}.querySelectorAll('.record').length >= {len(RECORDS)}")
            over = "return document.documentElement.scrollWidth - window.innerWidth"
            assert await tab.run_script(over) <= 0
            ground = "return getComputedStyle(document.documentElement).backgroundColor"
            light = sum(map(int, (await tab.run_script(ground))[4:-1].split(","))) > 3 * 128
            assert light is not dark


@pytest.mark.needs("chromium")
async def test_a_refused_stream_says_why(tab: Browser):
    async with shop() as (_, gateway):
        await tab.open_url(f"{gateway.base_url}/")
        card = CARD.format("/events/orders")
        await tab.run_script(f"{card}.querySelector('[name=from]').value = 'yesterday'")
        await tab.run_script(f"{card}.querySelector('.try').click()")
        state = f"{card}.querySelector('[role=status]').textContent"
        await shows(tab, f"return /refused: .*from=yesterday is no time/.test({state})")


@pytest.mark.needs("chromium")
async def test_many_streams_are_searched_and_few_of_them_are_open_at_once(tab: Browser):
    """A browser has six connections to a server of HTTP/1.1; the page leaves some to others."""
    routes = [{"when": [{"path": f"/many/{n}"}], "with": {"topic": "orders"}} for n in range(9)]
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        async with running_gateway(build_config(kafka.bootstrap, ["orders"], routes)) as gateway:
            await tab.open_url(f"{gateway.base_url}/")
            copy = "document.querySelector('.copy')"
            await tab.run_script(f"{copy}.click()")
            await shows(tab, f"return /Copied|Selected/.test({copy}.textContent)")
            for number in range(5):
                card = CARD.format(f"/many/{number}")
                await tab.run_script(f"{card}.querySelector('.try').click()")
                await shows(tab, f"return {card}.querySelector('[data-event=begin]')")
            first = CARD.format("/many/0")
            said = await tab.run_script(
                f"return {first}.querySelector('[role=status]').textContent"
            )
            assert said == "stopped, another one was started"
            assert (
                await tab.run_script("return document.querySelectorAll('[data-state=live]').length")
                == 4
            )
            await tab.run_script("document.getElementById('search').focus()")
            await tab.press_keys("MANY/7")
            await shows(tab, "return document.getElementById('found').textContent === '1 of 9'")
            seen = (
                "[...document.querySelectorAll('article')].filter((each) => each.checkVisibility())"
            )
            paths = await tab.run_script(f"return {seen}.map((each) => each.dataset.path)")
            assert paths == ["/many/7"]
