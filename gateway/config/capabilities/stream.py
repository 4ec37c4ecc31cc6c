"""Define the capability `stream`, which opens a stream of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.source.template import Template
from gateway.config.types.condition import RequestTemplate
from gateway.config.types.fields import Duration, Flag, History, Rate, in_range
from gateway.config.types.section import Problem

from .options import With


class StreamWith(With):
    """A stream of records: which topics, how records are filtered, shown and sent."""

    capability: Literal["stream"] = Field(
        default="stream",
        description="What a request does: `stream` opens a stream of records. For clients.",
    )
    topics: tuple[RequestTemplate, ...] = Field(
        default=(),
        description="Several topics in one stream, instead of `topic`. For clients that need them "
        "in order of arrival.",
    )
    heartbeat: Annotated[Duration, in_range(0.1, 600)] = Field(
        default=15.0,
        description="How often something is written to an idle stream, which must be more often "
        "than proxies close idle connections. For proxies in front.",
    )
    history: History = Field(
        default="all",
        description="How far back ?from= may go: none, all or a duration. For owners of large "
        "topics.",
    )
    slow_client: Literal["catchUp", "skip", "conflate", "disconnect"] = Field(
        default="catchUp",
        description="What a client gets that reads too slowly: all that it missed (catchUp), a gap "
        "(skip), the latest record of each key (conflate) or the end of its stream (disconnect). "
        "For mobile clients.",
    )
    mode: Literal["live", "snapshot"] = Field(
        default="live",
        description="live begins at the client's position; snapshot sends the latest record of "
        "each key first. For compacted topics.",
    )
    interval: Annotated[Duration, in_range(0.01, 60)] | None = Field(
        default=None,
        description="Send at most once in this time, and only the latest record of each key; "
        "default every record. For displays.",
    )
    compression: Literal["dictionary", "gzip", "none"] = Field(
        default="dictionary",
        description="Compression for clients that accept it, once for all of them. dictionary is "
        "for browsers that have loaded the dictionary of the route, which holds some of its "
        "records, and gzip for others; gzip has no dictionaries. Use none if secret records are "
        "sent together with ones that strangers write, because the length of the compressed data "
        "tells something about the secret. For clients on slow networks.",
    )
    max_rate: Rate | None = Field(
        default=None,
        description="The most records for each client in a time, such as 100/s; a client that "
        "falls behind by it gets what `slowClient` says. For displays, and for small devices.",
    )
    max_lifetime: Annotated[Duration, in_range(1, 30 * 86_400)] | None = Field(
        default=None,
        description="How long a stream may last before it is ended and the client resumes; default "
        "no limit. For load balancers that move clients to new replicas.",
    )
    produce: Flag = Field(
        default=False,
        description="Whether clients of the stream may write records, over WebSocket. For commands "
        "of clients.",
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
