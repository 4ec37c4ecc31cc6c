"""Define the capability `produce`, with the options of Zilla's binding http-kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from gateway.config.source.template import LOCATION_ROOTS, WRITE_ROOTS, Template, require_roots
from gateway.config.types.fields import Duration, Text, TopicName, in_range
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, Section, create_value_error

from .options import WRITE_METHODS, With

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


class ProduceWith(With):
    """A record that is written: to which topic, with which key and headers, and the reply to it."""

    methods: ClassVar[tuple[str, ...]] = WRITE_METHODS

    capability: Literal["produce"] = Field(
        description="What a request does: `produce` writes its body as a record. For clients."
    )
    key: WriteTemplate | None = Field(
        default=None,
        description="Key of the records that are written, such as ${params.id} or "
        "${idempotencyKey}. For order, and for compacted topics.",
    )
    overrides: dict[Text, WriteTemplate] = Field(
        default={},
        description="Headers of the records that are written, which override those of the request. "
        "For services that must know the sender.",
    )
    acks: Literal["in_sync_replicas", "none"] | None = Field(
        default=None,
        description="When a request is answered: when the in-sync replicas have its record "
        "(default), or at once (none). For records that may be lost.",
    )
    reply_to: TopicName | None = Field(
        default=None,
        description="The topic of replies; a request is answered with the reply to its record. For "
        "services behind Kafka.",
    )
    correlation: Correlation | None = Field(
        default=None,
        description="Headers by which a request and its reply are matched; default those of Zilla. "
        "For services that reply.",
    )
    timeout: Annotated[Duration, in_range(0.1, 300)] | None = Field(
        default=None,
        description="How long to wait for a reply before the request is answered with 504; default "
        "30s. For slow services.",
    )
    async_: Async | None = Field(
        default=None,
        alias="async",
        description="Where a request with Prefer: respond-async can fetch its reply later; default "
        "such requests wait, too. For slow services.",
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
