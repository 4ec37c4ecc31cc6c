"""Define the options of routes that write records, and check them against the capability.

The options are those of Zilla's binding http-kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gateway.config.source.template import LOCATION_ROOTS, WRITE_ROOTS, Template, require_roots
from gateway.config.types.fields import Text
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error

RESERVED_RECORD_HEADERS = frozenset({"idempotency-key", "idempotency-scope"})
"""Record headers that the gateway itself writes, so that `overrides` cannot have them."""

_PRODUCE_OPTIONS = ("key", "overrides", "acks", "replyTo", "timeout", "correlation", "async")
_REPLY_OPTIONS = ("timeout", "correlation", "async")
_WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")


def _validate_write_template(template: Template) -> Template:
    return require_roots(template, WRITE_ROOTS, "${params.name}")


def _validate_location(template: Template) -> Template:
    """Return a template of a path that has the correlation id as a whole segment."""
    require_roots(template, LOCATION_ROOTS, "${correlationId} and ${params.name}")
    try:
        pattern = parse_location(template)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    if "correlationId" not in pattern.params:
        what = "it identifies the reply; add it, as in /replies/${correlationId}"
        raise create_value_error(f"'{template}' has no ${{correlationId}}; {what}")
    return template


def parse_location(location: Template) -> PathPattern:
    """Return the pattern of all paths that a location can render.

    Raises:
        ValueError: If it cannot be the pattern of a path.
    """
    parts = [part if isinstance(part, str) else f"{{{part.name}}}" for part in location.parts]
    return PathPattern.parse("".join(parts))


WriteTemplate = Annotated[Template, AfterValidator(_validate_write_template)]
Location = Annotated[Template, AfterValidator(_validate_location)]


class Correlation(Section):
    """The record headers by which a request and its reply are matched."""

    reply_to: Text = Field(
        default="zilla:reply-to",
        description="Header of a request's record that names the topic of the reply. For services "
        "that reply.",
    )
    correlation_id: Text = Field(
        default="zilla:correlation-id",
        description="Header of a request's record that the reply repeats. For services that reply.",
    )


class Async(Section):
    """How a client gets a reply that it does not wait for (RFC 7240 4.1)."""

    location: Location = Field(
        description="Path at which the reply can be fetched later, such as "
        "/replies/${correlationId}. For slow services."
    )


def check_with(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems between the options of a route's `with` and its capability.

    Args:
        raw: The options of `with` as written.
    """
    capability = raw.get("capability", "stream")
    for name in _PRODUCE_OPTIONS if capability in ("stream", "fetch") else ():
        if name in raw:
            what = f"'{name}' is for capability: produce; add that, or remove it"
            yield Problem((name,), what, is_key=True)
    if capability == "produce":
        yield from _check_produce(raw)
    elif capability == "fetch":
        yield from _check_fetch(raw)


def _check_produce(raw: Mapping[str, Any]) -> Iterator[Problem]:
    if "topics" in raw:
        yield Problem(("topics",), "a record is written to one topic; use topic", is_key=True)
    if raw.get("produce") in (True, "true"):
        what = "'produce' is for streams, and capability: produce says it already; remove it"
        yield Problem(("produce",), what, is_key=True)
    for name in _REPLY_OPTIONS if "replyTo" not in raw else ():
        if name in raw:
            what = f"'{name}' is about replies; add replyTo, the topic of the replies"
            yield Problem((name,), what, is_key=True)
    if "replyTo" in raw and raw.get("acks") == "none":
        what = "a request with a reply waits until its record is written, too; remove it"
        yield Problem(("acks",), what)
    overrides = raw.get("overrides")
    for name in overrides if isinstance(overrides, Mapping) else ():
        if str(name).lower() in RESERVED_RECORD_HEADERS:
            what = f"the header '{name}' is written by the gateway itself; use another"
            yield Problem(("overrides", str(name)), what, is_key=True)


def _check_fetch(raw: Mapping[str, Any]) -> Iterator[Problem]:
    if "topics" in raw:
        yield Problem(("topics",), "a document is of one topic; use topic", is_key=True)
    if raw.get("produce") in (True, "true"):
        yield Problem(("produce",), "'produce' is for streams; remove it", is_key=True)
    filters = raw.get("filters")
    if not isinstance(filters, (list, tuple)) or len(filters) != 1:
        what = 'a document is the latest record of one key; write filters: [{key: "${params.id}"}]'
        yield Problem(("filters",) if "filters" in raw else (), what)
        return
    key = filters[0].get("key") if isinstance(filters[0], Mapping) else None
    if key is None or isinstance(key, Mapping):
        what = "names no key, and a document is the record of a key; add key: ${params.id}"
        yield Problem(("filters", 0), what)


def check_methods(raw: Mapping[str, Any]) -> Iterable[Problem]:
    """Yield the problems of methods that do not fit the capability of a route.

    Args:
        raw: The options of the route as written.
    """
    options = raw.get("with")
    capability = options.get("capability", "stream") if isinstance(options, Mapping) else None
    has_key = isinstance(options, Mapping) and "key" in options
    paths = raw.get("when")
    for index, path in enumerate(paths if isinstance(paths, (list, tuple)) else ()):
        method = path.get("method") if isinstance(path, Mapping) else None
        if capability in ("stream", "fetch") and method in _WRITE_METHODS:
            what = f"method {method} is for capability: produce; use GET, or remove it"
            yield Problem(("when", index, "method"), what)
        elif capability == "produce" and method == "GET":
            what = "method GET writes nothing; use POST, PUT, PATCH or DELETE"
            yield Problem(("when", index, "method"), what)
        elif capability == "produce" and method == "DELETE" and not has_key:
            what = (
                "method DELETE writes a tombstone, which needs a key; add such as key: ${params.id}"
            )
            yield Problem(("when", index, "method"), what)
