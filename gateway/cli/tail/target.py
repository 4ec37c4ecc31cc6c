"""Parse what `gateway tail` is asked for: a stream's URL or topics, its start, and --position.

The parameters `from`, `until` and `lastEventId` of a URL mean the same as the options: they are for
the first connection, not for every reconnect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gateway.cli.output import replace_file, require_writable
from gateway.errors import GatewayError


class OutputFormat(StrEnum):
    PRETTY = "pretty"
    JSON = "json"
    VALUE = "value"


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_TOPICS = re.compile(r"[A-Za-z0-9._-]{1,249}(,[A-Za-z0-9._-]{1,249})*")
_POSITION = re.compile(r"[A-Za-z0-9_-]{24,}")  # longer than any time without a colon
_COUNT = re.compile(r"[0-9]{1,12}")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class StreamQuery:
    """The start and end of a stream, and the selection of records.

    Attributes:
        start: `live`, `earliest` or a time; None for the route's default.
        position: A resume token, which overrides `start`.
        until: `latest` or a time; None to follow for ever.
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
        others = tuple((name, value) for name, value in pairs if name not in own)
        query = cls(other_parameters=others).with_start(own.get("from")).with_end(own.get("until"))
        return replace(query, position=own.get("lastEventId") or query.position)

    def with_start(self, text: str | None) -> Self:
        """Return the query with another start: a time, or a position as ^C prints it."""
        if not text:
            return self
        if _POSITION.fullmatch(text):
            return replace(self, position=text)
        return replace(self, start=text, position=None)

    def with_end(self, text: str | None) -> Self:
        """Return the query with another end: a time, or a number of records."""
        if not text:
            return self
        if _COUNT.fullmatch(text):
            return replace(self, count=int(text), until=None)
        return replace(self, until=text, count=None)

    def with_selection(self, filters: list[str], fields: str | None) -> Self:
        added = [("filter", each) for each in filters]
        added += [("fields", fields)] if fields else []
        return replace(self, other_parameters=(*self.other_parameters, *added))

    def encode(self, position: str | None) -> str:
        """Return the query string of a connection, without `start` if there is a position."""
        pairs = [*self.other_parameters]
        if self.start and position is None:
            pairs.append(("from", self.start))
        if self.until:
            pairs.append(("until", self.until))
        return urlencode(pairs)


@dataclass(frozen=True)
class Target:
    """The stream or topics to follow.

    Attributes:
        scheme: `http` or `https`; empty for topics.
        location: Host and port as written, with credentials if there are any; or the topics.
    """

    scheme: str
    location: str
    path: str = ""
    query: StreamQuery = field(default_factory=StreamQuery)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL, or topics separated by commas; raise ValueError saying how to write them."""
        scheme = _SCHEME.match(text)
        if scheme is None:
            if not _TOPICS.fullmatch(text):
                what = "is neither a URL nor a topic; a URL begins with http://"
                raise ValueError(f"'{text}' {what}")
            return cls("", text)
        if scheme[1].lower() not in ("http", "https"):
            what = "is neither http:// nor https://, where every stream is"
            raise ValueError(f"'{scheme[1]}://' {what}")
        parts = urlsplit(text)
        if not parts.hostname or parts.port == 0:
            raise ValueError(f"'{text}' has no host; write such as http://localhost:8080/events/a")
        query = StreamQuery.parse(parts.query)
        return cls(parts.scheme, parts.netloc, parts.path or "/", query)

    @property
    def topics(self) -> list[str]:
        return self.location.split(",")

    def build_url(self, query: str = "", path: str | None = None) -> str:
        return urlunsplit((self.scheme, self.location, path or self.path, query, ""))

    @property
    def display_name(self) -> str:
        return self.location.rpartition("@")[2]


class PositionFile:
    """A file that keeps a position for the next start.

    It is replaced as a whole, so it always has a complete position.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: str | None = None

    def read(self) -> str | None:
        require_writable(self.path)
        try:
            text = self.path.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise GatewayError(f"cannot read the position in {self.path}: {exc}") from exc
        if text and not _TOKEN.fullmatch(text):
            raise GatewayError(
                f"{self.path} does not hold a position; name another file, or delete it"
            )
        self._stored = text or None
        return self._stored

    def write(self, position: str | None) -> None:
        if position is None or position == self._stored:
            return
        replace_file(self.path, f"{position}\n")
        self._stored = position
