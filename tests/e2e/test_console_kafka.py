"""What the console looks up when an operator asks: groups, jobs, dead letters."""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from support.admin_api import ADMIN_SECTION
from support.backend import running_backend
from support.brokers import embedded_kafka
from support.console_page import open_console
from support.dead_letters import write_dead_letters
from support.gateways import build_config
from support.group_members import commit_positions, running_member
from support.playwright_page import expect
from support.query_progress import build_kafka_source, build_operator, build_progress
from support.records import RecordToSend, produce_records
from support.topic_reads import open_cluster
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.async_api import Route

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures("page_browser"),
]

embedded = embedded_kafka({"orders": 3}, fetch_version=11)


def admin_config_of(bootstrap: list[str], topics: list[str], **sections: Any) -> dict[str, Any]:
    return build_config(bootstrap, topics, admin={**ADMIN_SECTION}, **sections)


async def test_a_group_is_found_with_its_members_and_its_lag(kafka, topic):
    name, group = topic(partitions=2), f"billing-{uuid.uuid4().hex[:12]}"
    async with open_cluster(kafka.bootstrap, name) as cluster:
        await produce_records(kafka.bootstrap, name, [RecordToSend(b"x", partition=0)] * 10)
        async with running_member(cluster, group, [name], auto_offset_reset="earliest") as one:
            await wait_until(lambda: len(one.records) >= 10 and len(one.owned_partitions) == 2)
            await commit_positions(one.consumer)
            await produce_records(kafka.bootstrap, name, [RecordToSend(b"x", partition=1)] * 3)
            config = admin_config_of(kafka.bootstrap, [name])
            async with open_console(config, fragment="#groups") as (page, _):
                await page.get_by_role("searchbox", name="Name").fill(group[:-1].upper())
                await page.get_by_role("button", name="Search").click()
                row = page.locator("#group-rows tr")
                await expect(row).to_have_count(1)
                await expect(page.locator("#groups-page")).to_have_text("page 1, 1 of 1 groups")
                await row.get_by_role("button", name="Members and lag").click()
                await expect(page.locator("#group-details-title")).to_have_text(f"Group {group}")
                members = page.locator("#group-members tr")
                await expect(members).to_have_count(1)
                await expect(members).to_contain_text("127.0.0.1")
                partitions = page.locator("#group-partitions tr")
                await expect(partitions).to_have_count(2)
                await expect(partitions.filter(has_text=f"{name} 0")).to_contain_text("gateway")
        # The member is gone: its lag grows, and nobody owns the partitions.
        await produce_records(kafka.bootstrap, name, [RecordToSend(b"x", partition=0)] * 7)
        async with open_console(config, fragment="#groups") as (page, _):
            await page.get_by_role("button", name=f"Members and lag of {group}").click()
            await expect(page.locator("#group-members")).to_contain_text("No member")
            await expect(page.locator("#group-partitions tr").first).to_contain_text("7")


async def test_a_failure_is_shown_in_its_section_only(embedded):
    """The embedded Kafka cannot list groups."""
    config = admin_config_of(embedded.bootstrap, ["orders"])
    async with open_console(config, fragment="#groups") as (page, _):
        await expect(page.locator("#groups-message")).to_be_visible()
        await page.get_by_role("link", name="Overview").click()
        await expect(page.locator("#health")).to_have_attribute("data-level", "good")
        await expect(page.locator("#message")).to_be_hidden()


async def test_jobs_are_shown_by_their_progress(embedded):
    records = [
        RecordToSend(
            json.dumps(
                {
                    "job": job,
                    **build_progress(
                        batch,
                        rows=5000,
                        operators=[build_operator(dropped_count=3000 if job == "late" else 0)],
                        sources=[build_kafka_source("clicks", end=10, latest=35)],
                    ),
                    "alerts": {"late": "more than 20% of its rows come too late"}
                    if job == "late"
                    else {},
                }
            ).encode(),
            partition=0,
        )
        for batch in range(6)
        for job in ("late", "visits")
    ]
    embedded.create_topic("progress", 1)
    await produce_records(embedded.bootstrap, "progress", records)
    job = {
        "type": "sessions",
        "from": {"topic": "clicks", "time": "at", "value": {"fields": {"user": "string"}}},
        "by": ["user"],
        "to": {"topic": "visits"},
    }
    pipelines = {
        "progress": {"topic": "progress"},
        "jobs": [{**job, "name": name} for name in ("late", "quiet", "visits")],
    }
    config = admin_config_of(embedded.bootstrap, ["orders"], pipelines=pipelines)
    async with open_console(config, fragment="#jobs") as (page, _):
        rows = page.locator("#job-rows tr")
        await expect(rows).to_have_count(3)
        visits = rows.filter(has_text="visits")
        await expect(visits).to_contain_text("2500/s")
        await expect(visits).to_contain_text("25")
        await expect(rows.filter(has_text="quiet")).to_contain_text("no progress in the topic")
        await expect(rows.filter(has_text="late").first).to_contain_text("3000")
        findings = page.locator("#job-findings")
        await expect(findings).to_contain_text("Alert late: more than 20%")
        await expect(findings).to_contain_text("watermark")


async def test_what_is_not_configured_has_no_section(embedded):
    config = admin_config_of(embedded.bootstrap, ["orders"])
    async with open_console(config, fragment="#jobs") as (page, _):
        await expect(page.locator("#overview")).to_be_visible()
        await expect(page.get_by_role("link", name="Groups")).to_be_visible()
        for name in ("Jobs", "Dead letters"):
            await expect(page.get_by_role("link", name=name)).to_be_hidden()


async def test_dead_letters_are_looked_at_retried_and_dropped(kafka, caplog):
    caplog.set_level("INFO", "gateway")
    topic = kafka.create_unique_topic(partitions=2)
    kafka.create_topic(f"{topic}.dlq", 2)
    group = f"{topic}.group"
    write_dead_letters(kafka, topic, range(1, 7), group)
    async with running_backend() as backend:
        settings = {
            "group": group,
            "topics": [topic],
            "backend": {"host": backend.base_url},
            "valueFormat": "json",
            "maxPollRecords": 4,
            "autoOffsetReset": "latest",
        }
        sidecar = {"deadLetter": {}, "replay": {}, "reactive": {"groups": settings}}
        config = admin_config_of(kafka.bootstrap, [topic], sidecar=sidecar)
        async with open_console(config, fragment="#dead-letters") as (page, _):
            rows = page.locator("#letter-rows tr")
            # The only group and its only topic are filled in.
            await page.get_by_role("button", name="Show", exact=True).click()
            await expect(rows).to_have_count(6)
            await expect(rows.first).to_contain_text("Boom")
            await expect(rows.filter(has_text='{"n": 3}')).to_contain_text("key k3")
            await expect(page.locator("#replay-rows")).to_contain_text("No replay")
            await page.get_by_role("button", name="Retry a batch").click()
            await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
            message = page.locator("#letters-message")
            await expect(message).to_have_text("4 processed, 0 failed again, 0 given up")
            await expect(rows).to_have_count(2)
            await page.get_by_role("button", name="Drop those shown").click()
            await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
            await expect(message).to_have_text("2 dropped")
            await expect(page.locator("#letters-count")).to_contain_text("no dead letters of")
            assert "admin: retry dead letters" in caplog.text
            assert "admin: drop dead letters" in caplog.text
        assert sum(len(call["records"]) for call in backend.calls) == 4


MARKUP = '<img src="x" onerror="document.title = 1"><script>document.title = 2</script>'


async def test_markup_that_others_send_is_shown_as_text(embedded):
    """A group, a job or a dead letter may have any name, and a record any value."""
    value = json.dumps({"text": MARKUP}).encode()
    record = {"job": MARKUP, **build_progress(1), "alerts": {MARKUP: MARKUP}}
    letter = {
        **{"topic": MARKUP, "partition": 0, "offset": 1, "retries": 1, "stacktrace": MARKUP},
        **{"key": None, "value": base64.b64encode(value).decode(), "headers": {MARKUP: MARKUP}},
        "deadLetter": {"partition": 0, "offset": 5, "timestamp": 1},
    }
    embedded.create_topic("marked", 1)
    embedded.create_topic("marked-progress", 1)
    await produce_records(embedded.bootstrap, "marked", [RecordToSend(value, partition=0)])
    progress = RecordToSend(json.dumps(record).encode(), partition=0)
    await produce_records(embedded.bootstrap, "marked-progress", [progress])
    config = admin_config_of(
        embedded.bootstrap,
        ["marked"],
        pipelines={"progress": {"topic": "marked-progress"}},
        sidecar={"deadLetter": {}},
    )
    async with open_console(config, fragment="#jobs") as (page, _):

        async def respond(route: Route) -> None:
            await route.fulfill(json=[letter])

        await page.route("**/console/dead-letters?*", respond)
        await expect(page.locator("#job-rows")).to_contain_text(MARKUP)
        await page.get_by_role("link", name="Dead letters").click()
        await page.get_by_role("combobox", name="Group").fill("g")
        await page.get_by_role("combobox", name="Topic").fill("t")
        await page.get_by_role("button", name="Show", exact=True).click()
        await expect(page.locator("#letter-rows")).to_contain_text(MARKUP)
        await page.get_by_role("link", name="Try a stream").click()
        await page.get_by_label("From").fill("earliest")
        await page.get_by_role("button", name="Open").click()
        await expect(page.locator("#try-events")).to_contain_text("<img src=")
        assert await page.locator("main img, main script").count() == 0
        assert (await page.title()).startswith("test ")
