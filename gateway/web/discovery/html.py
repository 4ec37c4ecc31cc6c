"""The page for people. What operators wrote is text there, never markup."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template

from gateway.config import Settings
from gateway.version import __version__

from .description import NO_ROUTES_HINT, CommandExample, Parameter, StreamDescription, list_streams
from .exchanges import ExchangeDescription, list_exchanges

MIN_STREAMS_FOR_SEARCH = 7  # streams, of which a screen no longer shows all

_PAGE_TEMPLATE = Template((Path(__file__).parent / "page" / "index.html").read_text("utf-8"))
_TRANSPORT_NAMES = {"sse": "Server-sent events", "ndjson": "NDJSON", "websocket": "WebSocket"}
_INPUT_HINTS = {"from": "", "filter": "/amount>=10", "fields": "/id,/status"}


def render_page(settings: Settings, base_url: str) -> str:
    """The whole page. base: the URL of the gateway as the client knows it."""
    found = [(path, stream) for stream in list_streams(settings) for path in stream.paths]
    cards = "".join(
        _render_card(n, path, stream, base_url) for n, (path, stream) in enumerate(found)
    )
    others = "".join(_render_exchange(each, base_url) for each in list_exchanges(settings))
    none = f'<p class="empty">{escape(_capitalize(NO_ROUTES_HINT))}.</p>'
    return _PAGE_TEMPLATE.substitute(
        name=escape(settings.name),
        version=escape(__version__),
        count=f"{len(found)} stream{'' if len(found) == 1 else 's'}",
        search="" if len(found) >= MIN_STREAMS_FOR_SEARCH else "hidden",
        streams=cards + others or none,
    )


def _render_exchange(exchange: ExchangeDescription, base_url: str) -> str:
    """What is no stream: nothing to try here, but a line."""
    name = escape(f"{exchange.method} {exchange.path}")
    facts = [
        ("topic", ", ".join(map(str, exchange.route.with_.topic_templates))),
        ("does", exchange.action),
    ]
    if exchange.route.guarded:
        facts.append(("guarded by", ", ".join(exchange.route.guarded)))
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"""
<article class="exchange" aria-label="{name}">
  <h2>{name}</h2>
  <dl class="facts">{shown}</dl>
  <ul class="lines"><li><span>HTTP</span><code>{escape(exchange.format_line(base_url))}</code></li></ul>
</article>"""


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _render_card(number: int, path: str, stream: StreamDescription, base_url: str) -> str:
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _iter_facts(stream)
    )
    lines = "".join(_render_line(example, path, stream, base_url) for example in stream.examples)
    return f"""
<article class="stream" data-path="{escape(path)}" aria-labelledby="stream-{number}">
  <h2 id="stream-{number}">{escape(path)}</h2>
  <dl class="facts">{facts}</dl>
  <form>
    <div class="fields">{"".join(_render_input(number, each) for each in _iter_inputs(path, stream))}</div>
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
    may = [
        word
        for word, allowed in (
            ("filter", stream.client_filters),
            ("choose fields", stream.client_fields),
            ("produce over WebSocket", stream.produce),
        )
        if allowed
    ]
    if may:
        yield "clients may", ", ".join(may)
    if stream.guarded:
        yield "guarded by", ", ".join(stream.guarded)


def _iter_inputs(path: str, stream: StreamDescription) -> Iterator[Parameter]:
    """What is worth a field: what the path needs, and what chooses records."""
    for each in stream.parameters:
        if each.location == "path":
            if "{" + each.name + "}" in path:
                yield each._replace(required=True)
        elif each.required or each.name in _INPUT_HINTS:
            yield each


def _render_input(number: int, parameter: Parameter) -> str:
    name, hint = escape(parameter.name), parameter.default or _INPUT_HINTS.get(parameter.name, "")
    id = f"{name}-{number}"
    return (
        f'<div class="field"><label for="{id}">{name}</label>'
        f'<input id="{id}" name="{name}" data-in="{parameter.location}" placeholder="{escape(hint)}"'
        f' aria-describedby="{id}-what" autocomplete="off" autocapitalize="off" spellcheck="false"'
        f"{' required' if parameter.required else ''}>"
        f'<small id="{id}-what">{escape(parameter.description)}</small></div>'
    )


def _render_try_bar(stream: StreamDescription) -> str:
    if not stream.is_usable_by_page:
        what = "Guarded: a browser's EventSource sends no token. Use a line below with yours."
        return f'<p class="note">{what}</p>'
    return (
        '<div class="bar"><button type="submit" class="try" hidden>Try it</button>'
        '<p class="state" role="status" aria-live="polite"></p></div>'
    )


def _render_line(
    example: CommandExample, path: str, stream: StreamDescription, base_url: str
) -> str:
    line = example.format_line(base_url, path, stream.required_query)
    return (
        f'<li data-command="{escape(example.command)}" data-query="{escape(example.extra_query)}"'
        f' data-transport="{example.transport}"><div><span>{_TRANSPORT_NAMES[example.transport]}</span>'
        f"<code>{escape(line)}</code></div>"
        '<button type="button" class="copy" hidden>Copy</button></li>'
    )
