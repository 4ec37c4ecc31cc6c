"""What is followed: an address, or topics, and what is asked of it.

`from`, `until` and `lastEventId` of an address count as if they were given as options: they
hold for the beginning, not for every reconnect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_TOPICS = re.compile(r"[A-Za-z0-9._-]{1,249}(,[A-Za-z0-9._-]{1,249})*")
_POSITION = re.compile(r"[A-Za-z0-9_-]{24,}")  # longer than any time without a colon
_COUNT = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True)
class StreamQuery:
    """Where to begin and to end, and what is let through.

    origin:   live, earliest, a time. position: a resume token, which beats it.
    until:    latest or a time. count: so many records.
    rest:     of the address, and `filter` and `fields`.
    """

    start: str | None = None
    position: str | None = None
    until: str | None = None
    count: int | None = None
    other_parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        pairs = parse_qsl(text, keep_blank_values=True)
        own = {name: value for name, value in pairs if name in ("from", "until", "lastEventId")}
        rest = tuple((name, value) for name, value in pairs if name not in own)
        read = cls(other_parameters=rest).with_start(own.get("from")).with_end(own.get("until"))
        return replace(read, position=own.get("lastEventId") or read.position)

    def with_start(self, text: str | None) -> Self:
        """From a time, or from a position, as it was printed at ^C."""
        if not text:
            return self
        if _POSITION.fullmatch(text):
            return replace(self, position=text)
        return replace(self, start=text, position=None)

    def with_end(self, text: str | None) -> Self:
        """At a time, or after so many records."""
        if not text:
            return self
        if _COUNT.fullmatch(text):
            return replace(self, count=int(text), until=None)
        return replace(self, until=text, count=None)

    def with_selection(self, filters: list[str], fields: str | None) -> Self:
        more = [("filter", each) for each in filters]
        more += [("fields", fields)] if fields else []
        return replace(self, other_parameters=(*self.other_parameters, *more))

    def encode(self, position: str | None, **own: str) -> str:
        """For a connection; with a position, where to begin is not asked for any more."""
        pairs = [*self.other_parameters, *own.items()]
        if self.start and position is None:
            pairs.append(("from", self.start))
        if self.until:
            pairs.append(("until", self.until))
        return urlencode(pairs)


@dataclass(frozen=True)
class Target:
    """scheme: http, https, ws, wss; empty for topics.

    place:  host and port as written, or the topics. path: of the stream.
    socket: path of the WebSocket that many streams share, if it is to be one.
    """

    scheme: str
    location: str
    path: str = ""
    socket_path: str | None = None
    query: StreamQuery = field(default_factory=StreamQuery)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError that says how to write it."""
        scheme = _SCHEME.match(text)
        if scheme is None:
            return cls("", cls._check_topics(text))
        if scheme[1].lower() not in ("http", "https", "ws", "wss"):
            raise ValueError(f"'{scheme[1]}://' is none of http, https, ws, wss")
        parts = urlsplit(text)
        if not parts.hostname or parts.port == 0:
            raise ValueError(f"'{text}' has no host; write such as http://localhost:8080/events/a")
        if parts.scheme.startswith("http"):
            return cls(
                parts.scheme, parts.netloc, parts.path or "/", None, StreamQuery.parse(parts.query)
            )
        if parts.fragment:
            stream = urlsplit(parts.fragment)
            query = StreamQuery.parse(stream.query)
            return cls(parts.scheme, parts.netloc, stream.path, parts.path or "/ws", query)
        if parts.path == "/ws":
            raise ValueError("/ws is for many streams; name one: /ws#/events/orders")
        return cls(
            parts.scheme, parts.netloc, parts.path or "/", None, StreamQuery.parse(parts.query)
        )

    @staticmethod
    def _check_topics(text: str) -> str:
        if not _TOPICS.fullmatch(text):
            raise ValueError(f"'{text}' is neither a URL nor a topic; a URL begins with http://")
        return text

    @property
    def topics(self) -> list[str]:
        return self.location.split(",")

    def build_url(self, query: str = "", path: str | None = None) -> str:
        return urlunsplit((self.scheme, self.location, path or self.path, query, ""))

    @property
    def display_name(self) -> str:
        """Where that is, without credentials."""
        return self.location.rpartition("@")[2]
