"""Nothing on the console keeps people from using it, as far as axe-core can tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.accessibility import find_barriers
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.console_page import config_of, guarded_config_of, open_console
from support.playwright_page import expect
from support.records import RecordToSend, produce_records

from gateway.kafka.embedded import EmbeddedKafka
from gateway.web.console.partition_watch import PartitionState
from gateway.web.console.worker_report import IncidentKind

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

kafka = embedded_kafka({"orders": 3, "stock": 40}, fetch_version=11)

pytestmark = [
    pytest.mark.needs("chromium", "node", "npm"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("page_browser"),
]

SHOW_ALL_STATES = """states => document.querySelectorAll("#grid .cell").forEach(
    (cell, index) => (cell.dataset.state = states[index % states.length]))"""
SHOW_ALL_KINDS = """kinds => kinds.forEach((kind) => {
    const copy = document.querySelector("#incident-list li").cloneNode(true);
    copy.dataset.kind = kind;
    document.querySelector("#incident-list").append(copy);
})"""


async def list_barriers(page: Page, section: str) -> Sequence[str]:
    """Those in light and in dark colours."""
    found: list[str] = []
    for colors in ("light", "dark"):
        await page.emulate_media(color_scheme=colors, reduced_motion="reduce")
        found += [f"#{section}, {colors}: {each}" for each in await find_barriers(page)]
    return found


async def test_no_section_has_barriers(kafka: EmbeddedKafka):
    """Two states had too little contrast, and lists that are logs lost their role as lists."""
    await produce_records(kafka.bootstrap, "orders", [RecordToSend(b'{"n": 1}', partition=0)])
    barriers: list[str] = []
    async with (
        open_console(config_of(kafka)) as (page, gateway),
        RawClient(f"{gateway.base_url}/events/orders"),
    ):
        kafka.lead("stock", 7, None)
        try:
            await expect(page.locator("#troubled-rows th")).to_have_text("stock 7")
        finally:
            kafka.lead("stock", 7, 1)
        await page.evaluate(SHOW_ALL_STATES, list(PartitionState))
        barriers += await list_barriers(page, "overview")
        await page.get_by_role("link", name="Clients").click()
        await page.get_by_role("button", name="Details").first.click()
        await expect(page.locator("#client-partitions tr")).to_have_count(3)
        barriers += await list_barriers(page, "clients")
        await page.get_by_role("link", name="Gaps and errors").click()
        await expect(page.locator("#incident-list")).to_contain_text("stock 7: read again")
        await page.evaluate(SHOW_ALL_KINDS, list(IncidentKind))
        barriers += await list_barriers(page, "incidents")
        await page.get_by_role("link", name="Try a stream").click()
        await page.get_by_label("From").fill("earliest")
        await page.get_by_role("button", name="Open").click()
        await expect(page.locator("#try-events")).to_contain_text('{"n": 1}')
        barriers += await list_barriers(page, "try")
        await page.get_by_role("link", name="Records").click()
        await page.get_by_role("combobox", name="Topic").fill("orders")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#record-rows")).to_contain_text('{"n": 1}')
        barriers += await list_barriers(page, "records")
        await page.get_by_role("link", name="Configuration").click()
        await expect(page.locator("#config-diff")).to_contain_text("port: ")
        barriers += await list_barriers(page, "configuration")
        await page.get_by_role("button", name="Reload").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        barriers += await list_barriers(page, "question")
    assert not barriers, "\n".join(barriers)


async def test_the_sign_in_has_none(kafka: EmbeddedKafka):
    config = guarded_config_of(kafka, guarded={"users": []})
    async with open_console(config) as (page, _):
        await page.get_by_label("Token or password").fill("token-of-nobody")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#message")).to_contain_text("send a token")
        assert not await list_barriers(page, "sign-in")


GROUP = {"group": "billing", "state": "Stable", "type": "consumer", "protocol": "consumer"}
ANSWERS = {
    "groups": {"cluster": "", "clusters": [""], "groups": [GROUP], "total": 1, "next": None},
    "group?": {
        **GROUP, "assignor": "uniform", "lag": 5, "memberCount": 2, "partitionCount": 2,
        "members": [
            {"id": "m", "instanceId": None, "clientId": "c", "host": "::1", "partitions": 1}
        ],
        "partitions": [
            {"topic": "orders", "partition": 0, "committed": 1, "end": 6, "lag": 5, "owner": "m"}
        ],
    },
    "jobs": {
        "topic": "progress", "records": 9,
        "jobs": [
            {
                "job": "visits", "type": "sessions", "alerts": {"late": "rows come too late"},
                "batch": {
                    "endedAt": 1.0, "seconds": 2.0, "rows": 5, "rowsPerSecond": 2.5, "behind": 1,
                    "late": 2, "invalid": 3,
                },
                "causes": [
                    {
                        "title": "rows are dropped", "seconds": 1.0, "evidence": ["5 of 9"],
                        "settings": ["from.watermark"], "advice": "Raise it",
                    }
                ],
                "unseen": {"skew": "needs times of tasks"},
            },
            {
                "job": "quiet", "type": None, "alerts": {}, "batch": None, "causes": [],
                "unseen": {},
            },
        ],
    },
    "dead-letters": [
        {
            "topic": "orders", "partition": 0, "offset": 1, "retries": 1, "key": "aw==",
            "value": "/w==", "headers": {"h": "1"}, "stacktrace": "Boom\nat line 1",
            "deadLetter": {"partition": 0, "offset": 5, "timestamp": 1},
        }
    ],
    "replays": [
        {
            "id": "r", "topic": "orders", "destinationTopic": "copy", "consumerGroup": None,
            "state": "running", "progress": 0.5, "records": 1, "bytes": 2, "deadLetters": 0,
            "updatedAt": "2026-01-02T03:04:05Z", "error": "no leader",
        }
    ],
}  # fmt: skip


async def respond_with(answer: Any, route: Route) -> None:
    await route.fulfill(json=answer)


async def test_sections_of_what_kafka_is_asked_have_none(kafka: EmbeddedKafka):
    sidecar = {"deadLetter": {}, "replay": {}}
    pipelines = {"progress": {"topic": "progress"}}
    config = config_of(kafka, sidecar=sidecar, pipelines=pipelines)
    barriers: list[str] = []
    async with open_console(config) as (page, _):
        for name, answer in ANSWERS.items():
            await page.route(
                re.compile(rf"/console/{re.escape(name)}"), partial(respond_with, answer)
            )
        await page.get_by_role("link", name="Groups").click()
        await page.get_by_role("button", name="Members and lag").click()
        await expect(page.locator("#group-members")).to_contain_text("and 1 more")
        barriers += await list_barriers(page, "groups")
        await page.get_by_role("link", name="Jobs").click()
        await expect(page.locator("#job-findings")).to_contain_text("rows are dropped")
        barriers += await list_barriers(page, "jobs")
        await page.get_by_role("link", name="Dead letters").click()
        await page.get_by_role("combobox", name="Group").fill("billing")
        await page.get_by_role("combobox", name="Topic").fill("orders")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#letter-rows")).to_contain_text("1 B: ff")
        await page.get_by_text("trace").click()
        barriers += await list_barriers(page, "dead-letters")
    assert not barriers, "\n".join(barriers)
