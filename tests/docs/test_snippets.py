"""The scripts of the documentation, run by Chromium as a page of the gateway's own origin."""

from __future__ import annotations

import json
import re

import pytest
from support.brokers import embedded_kafka
from support.browser import Browser, running_browser
from support.doc_blocks import Block, explain_unrun, list_checked_pages, read_blocks
from support.gateways import build_config, running_gateway
from support.issuer import TokenIssuer
from support.records import RecordToSend, produce_records

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.needs("chromium")

kafka = embedded_kafka({"orders": 1, "prices": 1})

SNIPPETS = [
    block
    for page in list_checked_pages()
    for block in read_blocks(page)
    if block.kind in ("types", "html") and not explain_unrun(block)
]
ISSUER = TokenIssuer("HS256")
GUARD = {
    "type": "jwt",
    "keys": ISSUER.jwks,
    "credentials": {
        "headers": {"authorization": "Bearer {credentials}"},
        "cookies": {"session": "{credentials}"},
    },
}
IS_DONE = "window.shown.length || window.failed.length || document.querySelector('li')"
PATHS = ("/events/orders", "/events/my-orders", "/events/orders/{customer}")
RECORD = {"order": "A-1", "customer": "ada", "total": 12.5, "status": "paid", "symbol": "X"}

# What a script opens, prints and fails of. `declare` of a block has names of these.
PAGE = """
Object.assign(window, { opened: 0, shown: [], failed: [] });
window.SharedWorker = undefined; // which would open the connections of gateway.js
for (const name of ["EventSource", "WebSocket"]) {
  window[name] = class extends window[name] {
    constructor(...given) {
      super(...given);
      this.addEventListener("open", () => window.opened++);
      this.addEventListener("error", () => window.opened || window.failed.push(`no ${name}`));
    }
  };
}
window.addEventListener("error", ({ message }) => window.failed.push(message));
window.addEventListener("unhandledrejection", ({ reason }) => window.failed.push(String(reason)));
window.show = window.handle = console.log = (...shown) => window.shown.push(String(shown[0]));
window.token = arguments[0];
window.fetchToken = async () => window.token;
"""


def build_routes(guarded: list[str]) -> list[dict[str, object]]:
    options = {"clientFilters": True, "produce": True}
    made: list[dict[str, object]] = [
        {"when": [{"path": path}], "with": {"topic": "orders", **options}} for path in PATHS
    ]
    made.append({"when": [{"path": "/prices"}], "with": {"topic": "prices", "mode": "snapshot"}})
    return [{**route, "guarded": guarded} if guarded else route for route in made]


async def run_script(tab: Browser, block: Block, base_url: str) -> None:
    """Add it to the page, with the address of the gateway in place of those of the examples."""
    text, body = block.text, ""
    if block.kind == "html":
        (text,) = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
        body = block.text.partition("<script")[0]
    if "orders" in block.attributes.get("declare", "").split(","):
        text = (
            f'import {{ connect }} from "/gateway.js";\nconst orders = connect("{PATHS[0]}");{text}'
        )
    address = base_url.removeprefix("http")
    text = re.sub(r"(http|ws)s?://(gateway\.example\.com|127\.0\.0\.1:8080)", rf"\1{address}", text)
    await tab.run_script(
        "document.body.innerHTML = arguments[1];"
        "const script = document.createElement('script');"
        "Object.assign(script, { type: 'module', textContent: arguments[0] });"
        "document.head.append(script);",
        text,
        body,
    )


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.place)
async def test_a_script_of_a_page_opens_its_stream_and_shows_records(
    block: Block, kafka: EmbeddedKafka
):
    """Two were only typed, and no browser ever connected by them."""
    declared = block.attributes.get("declare", "").split(",")
    uses_cookie = "withCredentials" in block.text
    is_guarded = uses_cookie or {"token", "fetchToken"} & set(declared)
    routes = build_routes(["login"] if is_guarded else [])
    config = build_config(kafka.bootstrap, ["orders", "prices"], routes, guards={"login": GUARD})
    async with running_gateway(config) as gateway, running_browser() as tab:
        await tab.open_url(f"{gateway.base_url}/gateway.js")
        token = ISSUER.issue_token()
        await tab.run_script(PAGE, token)
        if uses_cookie:
            await tab.run_script("document.cookie = `session=${arguments[0]}`", token)
        await run_script(tab, block, gateway.base_url)
        await tab.wait_for_script(f"return window.opened || {IS_DONE}")
        value = json.dumps(RECORD).encode()
        await produce_records(kafka.bootstrap, "orders", [RecordToSend(value, key=b"ada")])
        if re.search(r"onrecord|onmessage|for await", block.text):
            await tab.wait_for_script(f"return {IS_DONE}")
        assert not await tab.run_script("return window.failed")
