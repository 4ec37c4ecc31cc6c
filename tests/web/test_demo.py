from __future__ import annotations

import asyncio
import logging
import re
import webbrowser
from pathlib import Path

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaConsumer
from support.kafka_proxy import ApiKey

from gateway.config import loads
from gateway.core.error_code import ErrorCode
from gateway.kafka.embedded import EmbeddedKafka
from gateway.web import demo, discovery, pipeline_demo
from gateway.web.app.app import create_app
from gateway.web.demo import open_sender


async def test_both_topics_are_written_to_until_it_is_cancelled():
    with EmbeddedKafka(topics=demo.TOPIC_PARTITIONS) as kafka:
        publisher = asyncio.create_task(demo.publish_records(kafka.bootstrap))
        consumer = AIOKafkaConsumer(
            *demo.TOPIC_PARTITIONS, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            seen: dict[str, set[str]] = {topic: set() for topic in demo.TOPIC_PARTITIONS}
            async with asyncio.timeout(30):
                while len(seen["host"]) < 4 or len(seen["orders"]) < 3:
                    record = await consumer.getone()
                    value = orjson.loads(record.value)
                    seen[record.topic].add(value.get("metric") or value["customer"])
        finally:
            publisher.cancel()
            await consumer.stop()
            await asyncio.wait([publisher])
        assert seen["host"] == {"cpu", "memory", "disk", "network"}
        assert publisher.cancelled()


async def test_what_was_handed_over_is_written_when_the_sender_closes():
    with EmbeddedKafka(topics={"orders": 3}) as kafka:
        async with open_sender(kafka.bootstrap) as sender:
            written = [await sender.send("orders", key, b"1") for key in (b"ada", b"ada", None)]
            assert not any(future.done() for future in written)
        assert [future.result() for future in written[:2]] == [0, 1]
        assert written[2].result() >= 0


async def test_dropped_records_are_logged_once_for_each_outage(caplog: pytest.LogCaptureFixture):
    """They were dropped without a word, and the page stood still."""
    caplog.set_level(logging.INFO, "gateway.web.demo")

    def list_lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if "demo" in each.name]

    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        async with open_sender(kafka.bootstrap) as sender:
            await (await sender.send("orders", b"ada", b"1"))
            kafka.fail(ApiKey.PRODUCE, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2)
            for _ in range(2):
                await asyncio.wait([await sender.send("orders", b"ada", b"2")])
            assert len(list_lines()) == 1 and "dropped" in list_lines()[0]
            await (await sender.send("orders", b"ada", b"3"))
    assert "2 were dropped" in list_lines()[-1]


def test_a_run_has_its_own_servers_and_address():
    text = demo.build_config(["127.0.0.1:4711"], "::1", 9000)
    settings = loads(text)
    assert (settings.listen.host, settings.listen.port) == ("::1", 9000)
    assert settings.kafka.servers == ("127.0.0.1:4711",)


def test_a_run_lets_pages_of_other_origins_in():
    """A page of a development server saw nothing of the demo, and no option allowed it."""
    origins = ["http://localhost:5173", "https://shop.example"]
    access = loads(demo.build_config(["k:9092"], "::1", 9000, origins)).listen.access_control
    assert access.policy == "cross-origin"
    assert access.allow.origins == tuple(origins)
    assert access.allow.credentials
    anybody = loads(demo.build_config(["k:9092"], "::1", 9000, ["*"])).listen.access_control
    assert anybody.policy == "cross-origin" and not anybody.allow.credentials


def test_the_printed_configuration_is_a_valid_one():
    assert loads(demo.CONFIG).kafka.servers == "embedded"


def test_the_routes_the_page_and_the_terminal_name_are_those_of_the_configuration():
    paths = set(re.findall(r'path: "?(/[\w/]+)', demo.CONFIG))
    asked = demo.format_invitation("http://x") + demo.PAGES["/demo.js"].read_text()
    named = set(re.findall(r"(/(?:events|records)/\w+)", asked))
    assert named == {path.rstrip("/") for path in paths}


def test_the_page_asks_for_nothing_that_is_not_in_the_package():
    for path in demo.PAGES.values():
        text = path.read_text()
        assert not re.search(r"""(?:src|href|url|@import)\s*[=(]?\s*["']?(?:https?:)?//""", text)
    asked = re.findall(r'(?:src|href)="([^":]+)"', demo.PAGES["/"].read_text())
    asked += re.findall(r'^import .* from "./(.+)";', demo.PAGES["/demo.js"].read_text(), re.M)
    assert {f"/{name}" for name in asked} | {"/"} == {*demo.PAGES, discovery.STREAMS_PATH}


def test_the_page_of_the_shop_has_all_that_it_asks_for():
    asked = re.findall(r'(?:src|href)="([\w.]+)"', pipeline_demo.PAGES["/"].read_text())
    asked += re.findall(
        r'^import .* from "./(.+)";', pipeline_demo.PAGES["/shop.js"].read_text(), re.M
    )
    assert {f"/{name}" for name in asked} | {"/"} == {*pipeline_demo.PAGES}


def test_every_element_the_script_looks_for_is_in_the_page():
    wanted = set(re.findall(r'\$\("([\w-]+)"\)', demo.PAGES["/demo.js"].read_text()))
    there = set(re.findall(r'\bid="([\w-]+)"', demo.PAGES["/"].read_text()))
    assert wanted
    assert wanted <= there


async def test_the_page_is_opened_when_the_server_answers(monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    port = demo.find_free_port("127.0.0.1")
    opening = asyncio.create_task(demo.open_page(f"http://127.0.0.1:{port}"))
    await asyncio.sleep(0)
    assert opened == []
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port):
        await asyncio.wait_for(opening, 30)
    assert opened == [f"http://127.0.0.1:{port}"]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://localhost:80"),
        ("::", "http://localhost:80"),
        ("::1", "http://[::1]:80"),
        ("127.0.0.1", "http://127.0.0.1:80"),
    ],
)
def test_the_address_printed_is_one_a_browser_can_use(host: str, url: str):
    assert demo.build_page_url(host, 80) == url


async def test_a_folder_is_served_as_it_is_by_now_and_nothing_beside_it(tmp_path: Path):
    (tmp_path / "secret").write_text("no")
    page = tmp_path / "mine" / "page"
    page.mkdir(parents=True)
    settings = loads(demo.build_config(["127.0.0.1:1"], "127.0.0.1", 1))
    transport = httpx.ASGITransport(create_app(settings, pages={"/pages": page.parent}))
    async with httpx.AsyncClient(transport=transport, base_url="http://demo") as http:
        for text in ("one", "another"):
            (page / "index.html").write_text(text)
            answer = await http.get("/pages/page/")
            assert (answer.text, answer.headers["cache-control"]) == (text, "no-cache")
        for path in ("/pages/none", "/pages/%2e%2e/secret", "/pages/page/../../secret"):
            assert (await http.get(path)).status_code == 404, path
