"""What a route that writes records has besides its topic, in the words of zilla's http-kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gateway.config.source.template import LOCATION_ROOTS, WRITE_ROOTS, Template, require_roots
from gateway.config.types.fields import Text
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error

RESERVED_RECORD_HEADERS = frozenset({"idempotency-key", "idempotency-scope"})
"""Headers of a record that the gateway writes itself."""

_PRODUCE_OPTIONS = ("key", "overrides", "acks", "replyTo", "timeout", "correlation", "async")
_REPLY_OPTIONS = ("timeout", "correlation", "async")
_WRITE_METHODS = ("POST", "PUT", "PATCH", "DELETE")


def _validate_write_template(template: Template) -> Template:
    return require_roots(template, WRITE_ROOTS, "${params.name}")


def _validate_location(template: Template) -> Template:
    require_roots(template, LOCATION_ROOTS, "${correlationId} and ${params.name}")
    try:
        pattern = parse_location(template)
    except ValueError as error:
        raise create_value_error(str(error)) from None
    if "correlationId" not in pattern.params:
        what = "a reply is asked for by it; add it, as in /replies/${correlationId}"
        raise create_value_error(f"'{template}' has no ${{correlationId}}; {what}")
    return template


def parse_location(location: Template) -> PathPattern:
    """The paths that a location gives, whatever fills its holes. Raises ValueError."""
    pieces = [piece if isinstance(piece, str) else f"{{{piece.name}}}" for piece in location.parts]
    return PathPattern.parse("".join(pieces))


WriteTemplate = Annotated[Template, AfterValidator(_validate_write_template)]
Location = Annotated[Template, AfterValidator(_validate_location)]


class Correlation(Section):
    """Headers of a request's record that its reply is found by."""

    reply_to: Text = Field(
        default="zilla:reply-to",
        description="The header that names the topic for the reply. For services that answer.",
    )
    correlation_id: Text = Field(
        default="zilla:correlation-id",
        description="The header that a reply takes over. For services that answer.",
    )


class Async(Section):
    location: Location = Field(
        description="The path where a reply is asked for later, such as "
        "/replies/${correlationId}. For slow services."
    )


def check_with(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What does not fit the capability of a route, in its `with`."""
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
            what = f"'{name}' is about replies; add replyTo, the topic they come by"
            yield Problem((name,), what, is_key=True)
    if "replyTo" in raw and raw.get("acks") == "none":
        what = "who waits for a reply waits for the record to be written, too; remove it"
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
        what = "names no key, and a document is the record of one; add such as key: ${params.id}"
        yield Problem(("filters", 0), what)


def check_methods(raw: Mapping[str, Any]) -> Iterable[Problem]:
    """Methods that a route's capability does not answer to."""
    options = raw.get("with")
    capability = options.get("capability", "stream") if isinstance(options, Mapping) else None
    keyed = isinstance(options, Mapping) and "key" in options
    whens = raw.get("when")
    for index, when in enumerate(whens if isinstance(whens, (list, tuple)) else ()):
        method = when.get("method") if isinstance(when, Mapping) else None
        if capability in ("stream", "fetch") and method in _WRITE_METHODS:
            what = f"method {method} is for capability: produce; use GET, or remove it"
            yield Problem(("when", index, "method"), what)
        elif capability == "produce" and method == "GET":
            what = "method GET writes nothing; use POST, PUT, PATCH or DELETE"
            yield Problem(("when", index, "method"), what)
        elif capability == "produce" and method == "DELETE" and not keyed:
            what = (
                "method DELETE writes a tombstone, which needs a key; add such as key: ${params.id}"
            )
            yield Problem(("when", index, "method"), what)
