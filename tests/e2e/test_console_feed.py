"""What the page shows of the events it is sent, which a test makes up here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.console_page import config_of, guarded_config_of, open_console
from support.playwright_page import expect

from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"orders": 3, "stock": 4})

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("page_browser"),
]

SNAPSHOT = {"partitions": [], "incidents": [], "figures": {}}
FIGURES = {"clients": 0, "websockets": 0, "behind": 0, "rss": 1, "memory": 1, "memoryLimit": 2}
ROW = ["", "orders", 0, "ready", None, 1.0, None, 0, 1]


def encode_events(*events: tuple[str, dict[str, Any]]) -> str:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


async def test_the_page_says_that_all_is_well_only_once_it_knows(kafka: EmbeddedKafka):
    """A snapshot without figures was shown as "Everything that is read can be read"."""
    async with open_console(config_of(kafka)) as (page, _):
        health = page.locator("#health")
        await expect(health).to_have_attribute("data-level", "good")
        body = encode_events(("snapshot", SNAPSHOT | {"workers": []}), ("delta", {"incidents": []}))
        await page.route(
            "**/console/events",
            lambda route: route.fulfill(content_type="text/event-stream", body=body),
        )
        await page.reload()
        await expect(page.locator("#partition-count")).to_have_text("0")
        await expect(health).to_have_attribute("data-level", "quiet")
        await expect(health).to_have_text("waiting for the first figures")


async def test_a_reload_that_a_worker_did_not_apply_says_so(kafka: EmbeddedKafka):
    """The page said "Reloaded" of all workers."""
    outcome = {
        "routes": {"same": 2, "changed": 0, "added": 0, "removed": 0},
        "streams": {},
        "kept": [],
        "missing": [2],
    }
    async with open_console(config_of(kafka), fragment="#configuration") as (page, _):
        # The file has the port by now that the system chose.
        state = page.locator("#config-state")
        await expect(state).to_contain_text("it needs a restart: listen.port")
        await page.route("**/reload", lambda route: route.fulfill(json=outcome))
        await page.get_by_role("button", name="Reload").click()
        await page.get_by_role("dialog").get_by_role("button", name="Reload").click()
        await expect(state).to_contain_text("; worker 2 did not answer")
        await expect(state).not_to_have_class("message good")


async def test_a_block_that_a_worker_did_not_hear_of_says_so(kafka: EmbeddedKafka):
    """The page said that the identity is blocked, and one worker still served it."""
    config = guarded_config_of(kafka)
    async with open_console(config, fragment="#clients") as (page, gateway):
        url, token = f"{gateway.base_url}/kept", {"Authorization": "Bearer token-of-ada"}
        async with RawClient(url, headers=token):
            row = page.locator("#client-rows tr").filter(has_text="ada (users)")
            await page.route(
                "**/revocations",
                lambda route: (
                    route.fulfill(json={"ended": 0, "missing": [2]})
                    if route.request.method == "POST"
                    else route.continue_()
                ),
            )
            await row.get_by_role("button", name="Block").click()
            await page.get_by_role("dialog").get_by_role("button", name="Block").click()
            message = page.locator("#clients-message")
            await expect(message).to_contain_text("ada is blocked; 0 streams end; worker 2 did not")


async def test_a_worker_that_does_not_answer_is_not_forgotten(kafka: EmbeddedKafka):
    """The first change that named no workers turned the line green again."""
    workers = [{"worker": 1, "up": True}, {"worker": 2, "up": False}]
    body = encode_events(
        ("snapshot", SNAPSHOT | {"figures": FIGURES, "workers": workers}),
        ("delta", {"partitions": [ROW]}),
    )
    async with open_console(config_of(kafka)) as (page, _):
        await page.route(
            "**/console/events",
            lambda route: route.fulfill(content_type="text/event-stream", body=body),
        )
        await page.reload()
        await expect(page.locator("#partition-count")).to_have_text("1")
        await expect(page.locator("#health")).to_have_text("worker 2 does not answer")
