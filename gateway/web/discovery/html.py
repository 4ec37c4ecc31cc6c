"""The page for people. What operators wrote is text there, never markup."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template

from gateway.config import Settings
from gateway.version import __version__

from .description import NO_ROUTES, Example, Parameter, Stream, streams
from .exchanges import Exchange, exchanges

SEARCH_FROM = 7  # streams, of which a screen no longer shows all

_PAGE = Template((Path(__file__).parent / "page" / "index.html").read_text("utf-8"))
_NAMES = {"sse": "Server-sent events", "ndjson": "NDJSON", "websocket": "WebSocket"}
_HINTS = {"from": "", "filter": "/amount>=10", "fields": "/id,/status"}


def render(settings: Settings, base: str) -> str:
    """The whole page. base: the URL of the gateway as the client knows it."""
    found = [(path, stream) for stream in streams(settings) for path in stream.paths]
    cards = "".join(_card(n, path, stream, base) for n, (path, stream) in enumerate(found))
    others = "".join(_other(each, base) for each in exchanges(settings))
    none = f'<p class="empty">{escape(_sentence(NO_ROUTES))}.</p>'
    return _PAGE.substitute(
        name=escape(settings.name),
        version=escape(__version__),
        count=f"{len(found)} stream{'' if len(found) == 1 else 's'}",
        search="" if len(found) >= SEARCH_FROM else "hidden",
        streams=cards + others or none,
    )


def _other(exchange: Exchange, base: str) -> str:
    """What is no stream: nothing to try here, but a line."""
    name = escape(f"{exchange.method} {exchange.path}")
    facts = [("topic", ", ".join(map(str, exchange.route.with_.sources))), ("does", exchange.does)]
    if exchange.route.guarded:
        facts.append(("guarded by", ", ".join(exchange.route.guarded)))
    shown = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"""
<article class="exchange" aria-label="{name}">
  <h2>{name}</h2>
  <dl class="facts">{shown}</dl>
  <ul class="lines"><li><span>HTTP</span><code>{escape(exchange.line(base))}</code></li></ul>
</article>"""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _card(n: int, path: str, stream: Stream, base: str) -> str:
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _facts(stream)
    )
    lines = "".join(_line(example, path, stream, base) for example in stream.examples)
    return f"""
<article class="stream" data-path="{escape(path)}" aria-labelledby="stream-{n}">
  <h2 id="stream-{n}">{escape(path)}</h2>
  <dl class="facts">{facts}</dl>
  <form>
    <div class="fields">{"".join(_input(n, each) for each in _inputs(path, stream))}</div>
    {_trying(stream)}
  </form>
  <ul class="lines">{lines}</ul>
</article>"""


def _facts(stream: Stream) -> Iterator[tuple[str, str]]:
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


def _inputs(path: str, stream: Stream) -> Iterator[Parameter]:
    """What is worth a field: what the path needs, and what chooses records."""
    for each in stream.parameters:
        if each.place == "path":
            if "{" + each.name + "}" in path:
                yield each._replace(required=True)
        elif each.required or each.name in _HINTS:
            yield each


def _input(n: int, parameter: Parameter) -> str:
    name, hint = escape(parameter.name), parameter.default or _HINTS.get(parameter.name, "")
    id = f"{name}-{n}"
    return (
        f'<div class="field"><label for="{id}">{name}</label>'
        f'<input id="{id}" name="{name}" data-in="{parameter.place}" placeholder="{escape(hint)}"'
        f' aria-describedby="{id}-what" autocomplete="off" autocapitalize="off" spellcheck="false"'
        f"{' required' if parameter.required else ''}>"
        f'<small id="{id}-what">{escape(parameter.description)}</small></div>'
    )


def _trying(stream: Stream) -> str:
    if not stream.by_page:
        what = "Guarded: a browser's EventSource sends no token. Use a line below with yours."
        return f'<p class="note">{what}</p>'
    return (
        '<div class="bar"><button type="submit" class="try" hidden>Try it</button>'
        '<p class="state" role="status" aria-live="polite"></p></div>'
    )


def _line(example: Example, path: str, stream: Stream, base: str) -> str:
    line = example.line(base, path, stream.required)
    return (
        f'<li data-command="{escape(example.command)}" data-query="{escape(example.query)}"'
        f' data-transport="{example.transport}"><div><span>{_NAMES[example.transport]}</span>'
        f"<code>{escape(line)}</code></div>"
        '<button type="button" class="copy" hidden>Copy</button></li>'
    )
