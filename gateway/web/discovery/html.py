"""Render the page for people. Text of operators is escaped, and never becomes markup.

The page with its script and its style takes 13 kB and tries each stream in the browser. AsyncAPI's
own page for `/asyncapi.json` (@asyncapi/react-component 3.2.1) takes 3 MB, shows nothing without
scripts, and cannot open a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template

from gateway.config import Settings
from gateway.version import __version__

from .description import (
    NO_ROUTES_HINT,
    CommandExample,
    ExchangeDescription,
    Parameter,
    StreamDescription,
    list_exchanges,
    list_streams,
)

MIN_STREAMS_FOR_SEARCH = 7  # streams; fewer fit on a screen, and the search is hidden

_PAGE_TEMPLATE = Template((Path(__file__).parent / "page" / "index.html").read_text("utf-8"))
_TRANSPORT_NAMES = {"sse": "Server-sent events", "ndjson": "NDJSON", "websocket": "WebSocket"}
# __URL__ and BASE/... become JSON strings of the URLs of the stream and the module, OPTIONS lines.
_SNIPPETS = {
    "JavaScript in a page": """\
import { connect } from BASE/gateway.js;

connect(__URL__, {
OPTIONS  onrecord: (record) => console.log(record),
  onstate: (state, { hint }) => console.log(state, hint ?? ""),
});""",
    "TypeScript, with the npm package": """\
import { connect } from "gateway.js";

type Item = Record<string, unknown>;
const stream = connect<Item>(__URL__, {
OPTIONS  onrecord: (record, { position }) => console.log(position, record),
  onstate: (state, { hint }) => console.log(state, hint ?? ""),
});""",
}
_TOKEN_OPTION = '  token: async () => "TOKEN",\n'
_INPUT_HINTS = {"from": "", "filter": "/amount>=10", "fields": "/id,/status"}


def render_page(settings: Settings, base_url: str) -> str:
    streams = [(path, stream) for stream in list_streams(settings) for path in stream.paths]
    cards = "".join(
        _render_card(n, path, stream, base_url) for n, (path, stream) in enumerate(streams)
    )
    exchanges = "".join(
        _render_exchange(exchange, base_url) for exchange in list_exchanges(settings)
    )
    no_routes = f'<p class="empty">{escape(NO_ROUTES_HINT[:1].upper() + NO_ROUTES_HINT[1:])}.</p>'
    return _PAGE_TEMPLATE.substitute(
        name=escape(settings.name),
        version=escape(__version__),
        count=f"{len(streams)} stream{'' if len(streams) == 1 else 's'}",
        search="" if len(streams) >= MIN_STREAMS_FOR_SEARCH else "hidden",
        streams=cards + exchanges or no_routes,
    )


def _render_exchange(exchange: ExchangeDescription, base_url: str) -> str:
    """Return the card of a request that is no stream, which has a line but cannot be tried."""
    name = escape(f"{exchange.method} {exchange.path}")
    facts = [
        ("topic", ", ".join(map(str, exchange.route.with_.topic_templates))),
        ("does", exchange.action),
    ]
    if exchange.route.guarded:
        facts.append(("guarded by", ", ".join(exchange.route.guarded)))
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    line = escape(exchange.format_line(base_url))
    return f"""
<article class="exchange" aria-label="{name}">
  <h2>{name}</h2>
  <dl class="facts">{items}</dl>
  <ul class="lines"><li><span>HTTP</span><code>{line}</code></li></ul>
</article>"""


def _render_card(number: int, path: str, stream: StreamDescription, base_url: str) -> str:
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _iter_facts(stream)
    )
    inputs = "".join(_render_input(number, parameter) for parameter in _iter_inputs(path, stream))
    lines = "".join(_render_line(example, path, stream, base_url) for example in stream.examples)
    lines += "".join(
        _render_snippet(name, text, path, stream, base_url) for name, text in _SNIPPETS.items()
    )
    return f"""
<article class="stream" data-path="{escape(path)}" aria-labelledby="stream-{number}">
  <h2 id="stream-{number}">{escape(path)}</h2>
  <dl class="facts">{facts}</dl>
  <form>
    <div class="fields">{inputs}</div>
    {_render_try_bar(stream)}
  </form>
  <ul class="lines">{lines}</ul>
</article>"""


def _iter_facts(stream: StreamDescription) -> Iterator[tuple[str, str]]:
    yield "topics" if len(stream.topics) > 1 else "topic", ", ".join(stream.topics)
    if stream.allow:
        yield "allowed", ", ".join(stream.allow)
    yield "format", stream.format
    yield "history", stream.history
    permissions = [
        permission
        for permission, allowed in (
            ("filter", stream.client_filters),
            ("choose fields", stream.client_fields),
            ("produce over WebSocket", stream.produce),
        )
        if allowed
    ]
    if permissions:
        yield "clients may", ", ".join(permissions)
    if stream.guarded:
        yield "guarded by", ", ".join(stream.guarded)


def _iter_inputs(path: str, stream: StreamDescription) -> Iterator[Parameter]:
    """Yield the parameters that have a field: those that the path needs or that choose records."""
    for parameter in stream.parameters:
        if parameter.location == "path":
            if "{" + parameter.name + "}" in path:
                yield parameter._replace(required=True)
        elif parameter.required or parameter.name in _INPUT_HINTS:
            yield parameter


def _render_input(number: int, parameter: Parameter) -> str:
    name, hint = escape(parameter.name), parameter.default or _INPUT_HINTS.get(parameter.name, "")
    id = f"{name}-{number}"
    return (
        f'<div class="field"><label for="{id}">{name}</label>'
        f'<input id="{id}" name="{name}" data-in="{parameter.location}"'
        f' placeholder="{escape(hint)}"'
        f' aria-describedby="{id}-what" autocomplete="off" autocapitalize="off" spellcheck="false"'
        f"{' required' if parameter.required else ''}>"
        f'<small id="{id}-what">{escape(parameter.description)}</small></div>'
    )


def _render_try_bar(stream: StreamDescription) -> str:
    if not stream.is_usable_by_page:
        note = "Guarded: a browser's EventSource sends no token. Use a line below with yours."
        return f'<p class="note">{note}</p>'
    return (
        '<div class="bar"><button type="submit" class="try" hidden>Try it</button>'
        '<p class="state" role="status" aria-live="polite"></p></div>'
    )


def _render_line(
    example: CommandExample, path: str, stream: StreamDescription, base_url: str
) -> str:
    """Return a line for a terminal; its `data-` members let the script rebuild it."""
    line = example.format_line(base_url, path, stream.required_query)
    return (
        f'<li data-command="{escape(example.command)}" data-query="{escape(example.extra_query)}"'
        f' data-transport="{example.transport}">'
        f"<div><span>{_TRANSPORT_NAMES[example.transport]}</span>"
        f"<code>{escape(line)}</code></div>"
        '<button type="button" class="copy" hidden>Copy</button></li>'
    )


def _render_snippet(
    name: str, text: str, path: str, stream: StreamDescription, base_url: str
) -> str:
    """Return lines for a script; the script of the page replaces __URL__ as its fields change."""
    options = "" if stream.is_usable_by_page else _TOKEN_OPTION
    module = json.dumps(f"{base_url}/gateway.js", ensure_ascii=False)
    text = text.replace("BASE/gateway.js", module).replace("OPTIONS", options)
    query = f"?{stream.required_query}" if stream.required_query else ""
    url = json.dumps(f"{base_url}{path}{query}", ensure_ascii=False)
    return (
        f'<li data-snippet="{escape(text)}"><div><span>{escape(name)}</span>'
        f"<code>{escape(text.replace('__URL__', url))}</code></div>"
        '<button type="button" class="copy" hidden>Copy</button></li>'
    )
