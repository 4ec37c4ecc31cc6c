"""The console as operators meet it: in a real browser, fed by a running gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.client import ReceivedEvent
from support.clients.raw import RawClient
from support.console_page import config_of, get_cell, guarded_config_of, open_console
from support.playwright_page import expect, open_page
from support.records import RecordToSend, produce_records

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 40}, fetch_version=11)

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("page_browser"),
]


async def test_a_partition_turns_red_when_its_leader_is_taken_away_and_green_after(
    kafka: EmbeddedKafka,
):
    async with open_console(config_of(kafka)) as (page, _):
        cell = get_cell(page, "orders", 1)
        await expect(cell).to_have_attribute("data-state", "ready")
        await expect(page.locator("#health")).to_have_attribute("data-level", "good")
        kafka.lead("orders", 1, None)
        try:
            await expect(cell).to_have_attribute("data-state", "leaderless")
            await expect(page.locator("#health")).to_have_text("1 of 43 partitions leaderless")
            await expect(page.locator("#troubled-rows th")).to_have_text("orders 1")
            await expect(page.locator("#troubled-rows")).to_contain_text("no-leader")
        finally:
            kafka.lead("orders", 1, 1)
        await expect(cell).to_have_attribute("data-state", "ready")
        await expect(page.locator("#troubled")).to_be_hidden()


async def test_records_make_a_partition_stream(kafka: EmbeddedKafka):
    async with open_console(config_of(kafka), workers=2) as (page, _):
        await expect(page.locator("#workers tr")).to_have_count(2)
        await expect(page.locator("#partition-count")).to_have_text("43")
        await produce_records(kafka.bootstrap, "orders", [RecordToSend(b"{}", partition=2)])
        await expect(get_cell(page, "orders", 2)).to_have_attribute("data-state", "streaming")


async def test_the_grid_is_used_by_keyboard(kafka: EmbeddedKafka):
    async with open_console(config_of(kafka)) as (page, _):
        await get_cell(page, "orders", 0).focus()
        for key, focused in (
            ("ArrowRight", "orders 1,"), ("ArrowDown", "stock 1,"), ("End", "stock 39,"),
            ("ArrowRight", "stock 39,"), ("ArrowLeft", "stock 38,"), ("Home", "orders 0,"),
        ):  # fmt: skip
            await page.keyboard.press(key)
            label = await page.evaluate("document.activeElement.ariaLabel")
            assert label.startswith(focused), (key, label)
        await expect(page.locator("#partition-details")).to_contain_text("orders 0")
        assert await page.locator(".cell[tabindex='0']").count() == 1


def count_ends(events: Sequence[ReceivedEvent]) -> int:
    return sum(each["event"] == "end" for each in events)


async def test_a_client_is_disconnected_and_blocked(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "gateway")
    config = guarded_config_of(kafka)
    async with open_console(config, fragment="#clients") as (page, gateway):
        url, token = f"{gateway.base_url}/kept", {"Authorization": "Bearer token-of-ada"}
        async with RawClient(url, headers=token) as client:
            row = page.locator("#client-rows tr").filter(has_text="ada (users)")
            await expect(row).to_contain_text("/kept")
            await expect(row).to_contain_text("live")
            await row.get_by_role("button", name="Details").click()
            await expect(page.locator("#client-partitions tr")).to_have_count(3)
            await row.get_by_role("button", name="Disconnect").click()
            await expect(page.locator("#clients-message")).to_contain_text("disconnected")
            await client.wait_for_events(lambda events: count_ends(events) == 1)
            # It has come back.
            await client.wait_for_events(lambda events: events[-1]["event"] == "begin")
            await expect(row).to_have_count(1)
            await row.get_by_role("button", name="Block").click()
            await page.get_by_role("dialog").get_by_role("button", name="Block").click()
            await expect(page.locator("#blocked-rows th")).to_have_text("ada")
            await client.wait_for_events(lambda events: count_ends(events) == 2)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(url, headers=token)).status_code == 403
        await page.get_by_role("button", name="Allow ada again").click()
        await expect(page.locator("#blocked-rows")).to_contain_text("Nobody is blocked")
        assert "admin: revoke" in caplog.text and "admin: disconnect" in caplog.text


async def test_an_operator_signs_in_with_a_token(kafka: EmbeddedKafka):
    config = guarded_config_of(kafka, guarded={"users": []})
    async with open_console(config) as (page, _):
        await expect(page.locator("#sign-in")).to_be_visible()
        for name, secret in (("", "token-of-nobody"), ("eve", "no-password"), ("", "token-of-eve")):
            await page.get_by_label("Name, for a password").fill(name)
            await page.get_by_label("Token or password").fill(secret)
            await page.get_by_role("button", name="Sign in").click()
            if secret != "token-of-eve":
                await expect(page.locator("#message")).to_contain_text("send a token")
        await expect(page.locator("#connection")).to_have_text("live")
        await expect(page.locator("#sign-in")).to_be_hidden()
        await page.reload()
        await expect(page.locator("#connection")).to_have_text("live")


async def test_nothing_is_asked_before_an_operator_has_signed_in(kafka: EmbeddedKafka):
    """The section of the address asked at once, and went on to show that a token was missing."""
    config = guarded_config_of(kafka, guarded={"users": []})
    async with open_console(config, fragment="#clients") as (page, _):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.reload()
        await expect(page.locator("#sign-in")).to_be_visible()
        assert not [url for url in asked if "/streams" in url]
        await page.get_by_label("Token or password").fill("token-of-eve")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#clients-page")).to_have_text("page 1, 0 clients")
        await expect(page.locator("#clients-message")).to_be_hidden()


async def test_clients_are_paged_by_the_gateway(kafka: EmbeddedKafka):
    async with AsyncExitStack() as stack:
        page, gateway = await stack.enter_async_context(
            open_console(config_of(kafka), fragment="#clients")
        )
        host, port = gateway.base_url.removeprefix("http://").split(":")
        for _ in range(130):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(b"GET /events/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"event: begin")
        rows = page.locator("#client-rows tr")
        await expect(rows).to_have_count(100)
        await page.get_by_role("button", name="Next page").click()
        await expect(page.locator("#clients-page")).to_have_text("page 2, 30 clients")
        await page.get_by_role("button", name="Previous page").click()
        await expect(rows).to_have_count(100)
        await page.get_by_label("Route").select_option("/records/orders")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.locator("#clients-page")).to_have_text("page 1, 0 clients")
        await page.get_by_label("Route").select_option("/events/orders")
        await page.get_by_role("button", name="Filter").click()
        await expect(rows).to_have_count(100)
        await page.get_by_role("button", name="Disconnect all").click()
        await page.get_by_role("dialog").get_by_role("button", name="Disconnect").click()
        await expect(page.locator("#clients-message")).to_have_text("130 clients are disconnected")
        await expect(rows).to_contain_text(["No client matches"])


async def test_a_stream_is_tried_within_its_credit(kafka: EmbeddedKafka):
    records = [RecordToSend(b'{"n": %d}' % n, partition=0) for n in range(30)]
    await produce_records(kafka.bootstrap, "orders", records)
    async with open_console(config_of(kafka), fragment="#try") as (page, gateway):
        await page.get_by_label("Path").fill("/events/orders")
        await page.get_by_label("From").fill("earliest")
        await page.get_by_label("Credit").fill("4")
        await page.get_by_role("button", name="Open").click()
        state = page.locator("#try-state")
        # Records of other tests are in the topic, too.
        shown = page.locator("#try-events li").filter(has_text=" message ")
        await expect(state).to_contain_text("the credit is used up")
        assert await shown.count() == 4
        await page.get_by_role("button", name="More credit").click()
        await expect(shown).to_have_count(8)
        await page.get_by_label("Address of the gateway").fill(gateway.base_url)
        command = await page.locator("#try-curl").inner_text()
        assert command == f"curl -N '{gateway.base_url}/events/orders?from=earliest'"
        await page.get_by_label("Path").fill("/events/nothing")
        await page.get_by_role("button", name="Open").click()
        await expect(state).to_have_attribute("data-state", "refused")


async def test_the_guards_of_a_route_decide_what_an_operator_may_try(kafka: EmbeddedKafka):
    """Whoever may operate the gateway may not read everything."""
    async with open_console(guarded_config_of(kafka), fragment="#try") as (page, _):
        await page.get_by_role("button", name="Open").click()
        state = page.locator("#try-state")
        await expect(state).to_contain_text("this stream is guarded by 'users'")
        await page.get_by_label("Token of the client").fill("token-of-ada")
        await page.get_by_role("button", name="Open").click()
        await expect(state).to_contain_text("open")
        await expect(page.locator("#try-curl")).to_contain_text("Bearer $TOKEN")


async def test_what_happens_is_listed_as_it_happens(kafka: EmbeddedKafka):
    async with open_console(config_of(kafka), fragment="#incidents") as (page, _):
        await expect(page.locator("#connection")).to_have_text("live")
        kafka.lead("stock", 7, None)
        try:
            items = page.locator("#incident-list li").filter(has_text="stock 7:")
            lost = items.and_(page.locator("[data-kind=partition-lost]"))
            await expect(lost).to_be_visible()
        finally:
            kafka.lead("stock", 7, 1)
        back = items.and_(page.locator("[data-kind=partition-back]"))
        await expect(back).to_contain_text("stock 7: read again")
        await page.get_by_label("Show").select_option("gap client-gap")
        await expect(items).to_have_count(0)


async def test_an_outage_that_is_over_stays_on_the_overview(kafka: EmbeddedKafka):
    """Nothing told of it, although the lines show ten minutes."""
    async with open_console(config_of(kafka)) as (page, _):
        await expect(page.locator("#health")).to_have_attribute("data-level", "good")
        recent = page.locator("#recent-text")
        kafka.down(1)
        try:
            await expect(recent).to_contain_text("Kafka has been away since")
        finally:
            kafka.up(1)
        await expect(recent).to_contain_text(re.compile("Kafka was away from .+ to "))
        await page.get_by_role("link", name="What happened").click()
        back = page.locator("#incident-list [data-kind=kafka-back]")
        await expect(back).to_contain_text("Kafka answers again")


async def test_whoever_opens_it_because_of_an_alert_sees_how_that_began(kafka: EmbeddedKafka):
    """The lines began when the page was opened."""
    async with open_console(config_of(kafka), workers=2) as (page, _):
        line = "#memory-plot path:not(.area)"
        await expect(page.locator(line)).to_have_attribute("d", re.compile("L.*L"))
        drawn = await page.locator(line).get_attribute("d") or ""
        async with open_page(page.url) as later:
            await expect(later.locator("#client-count")).to_have_text("0")
            # It has been sent one event until now.
            shown = await later.locator(line).get_attribute("d") or ""
            assert shown.count("L") >= drawn.count("L")


async def test_the_newest_records_of_a_topic_are_shown_to_whoever_may_look(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "gateway")
    record = RecordToSend(b'{"n": 7}', key=b"k7", headers=(("trace", b"\xff"),), partition=39)
    await produce_records(kafka.bootstrap, "stock", [record])
    async with open_console(config_of(kafka), fragment="#records") as (page, _):
        rows = page.locator("#record-rows")
        await expect(rows).to_contain_text("Choose a topic, and press Show")
        await page.get_by_role("combobox", name="Topic").fill("stock")
        await page.get_by_label("Partition", exact=True).fill("39")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(rows).to_contain_text('k7{"n": 7}1 header')
        await rows.get_by_text("1 header").click()
        await expect(rows).to_contain_text("trace: 1 B: ff")
        assert "admin: look at records topic='stock' partition='39'" in caplog.text
    async with open_console(guarded_config_of(kafka), fragment="#records") as (page, _):
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#records-message")).to_contain_text("set admin.records")
        await expect(page.locator("#record-rows tr")).to_have_count(1)


async def test_all_is_reached_on_a_phone(kafka: EmbeddedKafka):
    """Tabs and columns were cut at the right edge."""
    async with (
        open_console(config_of(kafka), fragment="#clients", size=(360, 740)) as (page, gateway),
        RawClient(f"{gateway.base_url}/events/orders"),
    ):
        button = page.get_by_role("button", name="Disconnect 127.0.0.1")
        await expect(button).to_be_visible()
        for item in [button, *await page.locator("#sections a:visible").all()]:
            box = await item.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_a_changed_file_is_shown_and_reloaded(kafka: EmbeddedKafka):
    config = config_of(kafka)
    async with open_console(config, workers=2, fragment="#configuration") as (page, gateway):
        state = page.locator("#config-state")
        # The file has the port by now that the system chose.
        await expect(page.locator("#config-diff")).to_contain_text(f"port: {gateway.port}")
        await expect(page.locator("#config-loaded")).to_contain_text("/events/orders")
        config["routes"][0]["when"] = [{"path": "/renamed"}]
        gateway.write_config(config)
        await page.get_by_role("button", name="Compare again").click()
        await expect(state).to_contain_text("The file differs")
        await expect(page.locator("#config-diff")).to_contain_text("path: /renamed")
        await page.get_by_role("button", name="Reload").click()
        await page.get_by_role("dialog").get_by_role("button", name="Reload").click()
        await expect(state).to_contain_text("1 added, 1 removed")
        await expect(state).to_contain_text("after a restart only: listen.port")
        await expect(page.locator("#config-diff")).not_to_contain_text("/renamed")
