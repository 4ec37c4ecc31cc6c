"""Snippets of pages for browsers connect, as they are printed, in Chromium."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator

import pytest
from support.browser import Browser, running_browser
from support.doc_blocks import DOCS, Block, read_blocks
from support.gateways import GatewayThread, build_config
from support.topic_gateway import run_gateway_sync
from support.waiting import WAIT_TIMEOUT_S

from gateway.kafka.embedded import EmbeddedKafka

SNIPPETS = [
    block
    for page in ("authentication", "browser", "websocket")
    for block in read_blocks(DOCS / f"{page}.md")
    if re.search(r"new (WebSocket|EventSource)\(|\bconnect\(", block.text)
    if block.language == "js" and 'from "gateway.js' not in block.text  # that of a bundler
]
# A SharedWorker's connections are not seen in the page.
RECORD_CONNECTIONS = """
    delete window.SharedWorker;
    window.opened = [];
    for (const name of ["WebSocket", "EventSource"]) {
        window[name] = class extends window[name] {
            constructor(...rest) {
                super(...rest);
                this.addEventListener("open", () => opened.push(this.url));
            }
        };
    }
    Object.assign(window, { token: "ada-token", fetchToken: () => token, handle: () => {} });
    document.cookie = "session=ada-token";
"""

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayThread]:
    credentials = {
        "headers": {"authorization": "Bearer {credentials}"},
        "cookies": {"session": "{credentials}"},
    }
    users = {"ada": {"token": "ada-token"}}
    guards = {"dev": {"type": "inline", "users": users, "credentials": credentials}}
    route = {
        "when": [{"path": "/events/orders"}],
        "guarded": {"dev": []},
        "with": {"topic": "orders", "clientFilters": True},
    }
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        config = build_config(kafka.bootstrap, ["orders"], [route], guards=guards)
        with run_gateway_sync(config) as gateway:
            yield gateway


@pytest.fixture
async def tab() -> AsyncIterator[Browser]:
    async with running_browser() as tab:
        yield tab


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.place)
async def test_a_snippet_is_connected(block: Block, tab: Browser, gateway: GatewayThread):
    """A subprotocol alone that no server may select is one that no browser accepts."""
    address = gateway.base_url.replace("http", "ws")
    snippet = block.text.replace("wss://gateway.example.com", address)
    snippet = snippet.replace("orders.close();", "")
    snippet = re.sub(
        r"^import (.+) from (.+);$", r"const \1 = await import(\2);", snippet, flags=re.M
    )
    await tab.open_url(f"{gateway.base_url}/")
    await tab.run_script(RECORD_CONNECTIONS)
    await tab.run_script(f"(async () => {{ {snippet} }})();")
    await tab.wait_for_script("return opened.length > 0", WAIT_TIMEOUT_S)
