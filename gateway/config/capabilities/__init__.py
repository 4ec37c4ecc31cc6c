"""Define the section `with` of routes, which has the options of one capability.

`options` has the common ones. To add a capability whose requests have one response, write a
subclass of `options.With` with its options, and enter it in `WITH_KINDS`; then write a subclass of
`gateway.web.exchange.exchange.Exchange`, which responds to requests and describes them for
documents, and enter it in `gateway.web.exchange.dispatch.EXCHANGES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field

from gateway.config.capabilities.options import WRITE_METHODS, With
from gateway.config.types.condition import RequestTemplate
from gateway.config.types.fields import Duration, Flag, History, Rate, Text, TopicName, in_range
from gateway.config.types.forms import Kinds
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error
from gateway.config.types.template import LOCATION_ROOTS, WRITE_ROOTS, Template, require_roots


class StreamWith(With):
    """A stream of records."""

    capability: Literal["stream"] = Field(
        default="stream", description="`stream` opens a stream of records."
    )
    topics: tuple[RequestTemplate, ...] = Field(
        default=(), description="Several topics in one stream, instead of `topic`."
    )
    heartbeat: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=15.0,
        description="How often an idle stream gets a heartbeat; sooner than proxies close idle "
        "connections.",
    )
    history: History = Field(default="all", description="How far back `?from=` may go.")
    slow_client: Literal["catchUp", "skip", "conflate", "disconnect"] = Field(
        default="catchUp",
        description="What a slow client gets: all that it missed (catchUp), a gap (skip), the "
        "latest record of each key (conflate) or the end of its stream (disconnect).",
    )
    mode: Literal["live", "snapshot"] = Field(
        default="live",
        description="live begins at the client's position; snapshot first sends the latest "
        "record of each key.",
    )
    interval: Annotated[Duration, in_range(0.01, 60)] | None = Field(
        default=None,
        description="Send at most once in this time, and only the latest record of each key.",
    )
    compression: Literal["dictionary", "gzip", "none"] = Field(
        default="dictionary",
        description="dictionary compresses by a dictionary of the route's records for browsers "
        "that have loaded it, and by gzip for others; gzip is for all. Use none if secrets are "
        "sent beside what strangers write: compressed lengths reveal something about them.",
    )
    max_rate: Rate | None = Field(
        default=None,
        description="The most records for each client, such as 100/s; for one that falls behind "
        "by it `slowClient` decides.",
    )
    max_lifetime: Annotated[Duration, in_range(1, 30 * 86_400)] | None = Field(
        default=None,
        description="When a stream is ended, so that its client resumes, perhaps at another "
        "replica.",
    )
    produce: Flag = Field(
        default=False, description="Whether clients may write records over WebSocket."
    )

    @property
    def topic_templates(self) -> tuple[Template, ...]:
        return super().topic_templates or self.topics

    @property
    def can_write(self) -> bool:
        return self.produce

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "topic" in raw and "topics" in raw:
            yield Problem(("topics",), "'topics' excludes 'topic'; keep one of them", is_key=True)
        elif "topic" not in raw and "topics" not in raw:
            yield Problem((), "'topic' is missing; add topic or topics", is_key=True)
        elif raw.get("topics") in ([], ()):
            yield Problem(("topics",), "is empty; list at least one topic")
        yield from cls.check_lists(raw)
        if raw.get("mode") == "snapshot" and raw.get("slowClient") == "skip":
            what = "skip leaves out what mode: snapshot promises, the latest record of each key"
            yield Problem(("slowClient",), f"{what}; use conflate")


class FetchWith(With):
    """The latest record of a key as a document."""

    capability: Literal["fetch"] = Field(
        description="`fetch` gets the latest record of a key as a document."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from super().check_raw(raw)
        filters = raw.get("filters")
        if not isinstance(filters, (list, tuple)) or len(filters) != 1:
            what = "a document is the latest record of one key"
            hint = 'write filters: [{key: "${params.id}"}]'
            yield Problem(("filters",) if "filters" in raw else (), f"{what}; {hint}")
            return
        key = filters[0].get("key") if isinstance(filters[0], Mapping) else None
        if key is None or isinstance(key, Mapping):
            what = "names no key, and a document is the record of a key; add key: ${params.id}"
            yield Problem(("filters", 0), what)


RESERVED_RECORD_HEADERS = frozenset({"idempotency-key", "idempotency-scope"})
"""Record headers that the gateway itself writes, so that `overrides` cannot have them."""

_REPLY_OPTIONS = ("timeout", "correlation", "async")


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
    """Return the pattern of all paths of a location; raise ValueError if it cannot be a path."""
    parts = [part if isinstance(part, str) else f"{{{part.name}}}" for part in location.parts]
    return PathPattern.parse("".join(parts))


WriteTemplate = Annotated[Template, AfterValidator(_validate_write_template)]
Location = Annotated[Template, AfterValidator(_validate_location)]


class Correlation(Section):
    """The record headers by which a request and its reply are matched."""

    reply_to: Text = Field(
        default="zilla:reply-to",
        description="Header of a request's record that names the topic of the reply.",
    )
    correlation_id: Text = Field(
        default="zilla:correlation-id",
        description="Header of a request's record that the reply repeats.",
    )


class Async(Section):
    """How a client gets a reply that it does not wait for (RFC 7240 4.1)."""

    location: Location = Field(description="Path of the reply, such as /replies/${correlationId}.")


class ProduceWith(With):
    """A record that is written, and the reply to it."""

    methods: ClassVar[tuple[str, ...]] = WRITE_METHODS

    capability: Literal["produce"] = Field(
        description="`produce` writes the body of a request as a record."
    )
    key: WriteTemplate | None = Field(
        default=None, description="Key of the records, such as ${params.id} or ${idempotencyKey}."
    )
    overrides: dict[Text, WriteTemplate] = Field(
        default={}, description="Headers of the records, which override those of the request."
    )
    acks: Literal["in_sync_replicas", "none"] | None = Field(
        default=None,
        description="When a request is answered: when the in-sync replicas have its record "
        "(default), or at once (none): it may still be lost.",
    )
    reply_to: TopicName | None = Field(
        default=None,
        description="The topic of replies, with which requests are answered.",
    )
    correlation: Correlation | None = Field(
        default=None,
        description="Headers that match a reply to its request; default Zilla's.",
    )
    timeout: Annotated[Duration, in_range(0.1, 300)] | None = Field(
        default=None, description="How long to wait for a reply before 504; default 30s."
    )
    async_: Async | None = Field(
        default=None,
        alias="async",
        description="Where a request with `Prefer: respond-async` (RFC 7240) can fetch its reply "
        "later; without it, such requests wait, too.",
    )

    @property
    def can_write(self) -> bool:
        return True

    @property
    def can_read(self) -> bool:
        return False

    @property
    def reply_topic(self) -> str | None:
        return self.reply_to

    @property
    def reply_location(self) -> Template | None:
        return None if self.async_ is None else self.async_.location

    @classmethod
    def check_method(cls, method: str, raw: Mapping[Any, Any]) -> str | None:
        if method == "GET":
            return "method GET writes nothing; use POST, PUT, PATCH or DELETE"
        if method == "DELETE" and "key" not in raw:
            what = "method DELETE writes a tombstone, which needs a key"
            return f"{what}; add such as key: ${{params.id}}"
        return None

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from super().check_raw(raw)
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


WITH_KINDS: Kinds[With] = Kinds(
    "route",
    {"stream": StreamWith, "fetch": FetchWith, "produce": ProduceWith},
    option="capability",
    default="stream",
)
"""The options of all capabilities, by their `capability`."""

AnyWith: TypeAlias = Annotated[With, WITH_KINDS]
