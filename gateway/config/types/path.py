"""Match the path of a route: `/events/{customer}`, or `/files/*` for everything below.

The raw path of the request is matched segment by segment, and each segment is decoded on its own,
so that a customer named `a%2Fb` is one segment and not two (RFC 3986 2.2).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._~!$&'()+,;=:@%-]+")

RESERVED_PATHS = frozenset(
    {
        *("/", "/asyncapi.json", "/discovery.css", "/discovery.js"),
        *("/gateway.js", "/gateway.d.ts", "/health/front", "/health/live", "/health/ready", "/ws"),
    }
)
VERSIONED_MODULE_PATTERN = re.compile(r"/gateway-[0-9a-f]{16}\.js")
"""The paths of the versions of `/gateway.js`."""


def is_reserved_path(path: str) -> bool:
    return path in RESERVED_PATHS or bool(VERSIONED_MODULE_PATTERN.fullmatch(path))


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A parsed path of a route; a parameter is a segment in braces."""

    segments: tuple[str, ...]
    has_wildcard: bool

    @classmethod
    def parse(cls, text: str) -> PathPattern:
        """Parse a path; raise ValueError saying how to write it."""
        if not text.startswith("/"):
            raise ValueError(f"path {text!r} does not start with '/'; write {'/' + text!r}")
        segments = text[1:].split("/")
        has_wildcard = segments[-1] == "*"
        if has_wildcard:
            segments.pop()
        for index, segment in enumerate(segments):
            _check_segment(segment, text, is_last=index == len(segments) - 1 and not has_wildcard)
        pattern = cls(tuple(segments), has_wildcard)
        for name in pattern.params:
            if pattern.params.count(name) > 1:
                raise ValueError(f"path {text!r} has two parameters '{name}'; rename one")
        return pattern

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(segment[1:-1] for segment in self.segments if segment[:1] == "{")

    @property
    def shape(self) -> tuple[object, ...]:
        """A value that is equal for patterns that match the same paths."""
        return (*("{}" if s[:1] == "{" else unquote(s) for s in self.segments), self.has_wildcard)

    def match(self, path: str) -> dict[str, str] | None:
        """Return the parameters of a raw (percent-encoded) path, None if it does not match."""
        # One segment more than the pattern has is enough to compare: a path may have 60,000.
        root, *raw_segments = path.split("/", len(self.segments) + 1)
        if root:
            return None
        extra = len(raw_segments) - len(self.segments)
        if extra < 1 if self.has_wildcard else extra != 0:
            return None
        params: dict[str, str] = {}
        for segment, raw in zip(self.segments, raw_segments, strict=False):
            is_param = segment[:1] == "{"
            if not is_param and len(raw) > 3 * len(segment):  # longer than "%41" for each byte
                return None
            try:
                text = unquote(raw, errors="strict")
            except UnicodeDecodeError:
                return None
            if is_param and text:
                params[segment[1:-1]] = text
            elif text != unquote(segment):
                return None
        return params

    def covers(self, other: PathPattern) -> bool:
        """Return whether this pattern matches every path that `other` matches."""
        if self.has_wildcard:
            if len(other.segments) + other.has_wildcard <= len(self.segments):
                return False
        elif other.has_wildcard or len(other.segments) != len(self.segments):
            return False
        return all(
            (mine[:1] == "{" and theirs != "")
            or (theirs[:1] != "{" and unquote(mine) == unquote(theirs))
            for mine, theirs in zip(self.segments, other.segments, strict=False)
        )


def _check_segment(segment: str, text: str, *, is_last: bool) -> None:
    if not segment:
        if is_last and text == "/":
            return
        fixed = re.sub(r"/+", "/", text).rstrip("/") or "/"
        raise ValueError(f"path {text!r} has an empty segment; write {fixed!r}")
    if segment == "*":
        raise ValueError(f"path {text!r} has '*' before its end; name the segment, such as {{id}}")
    if _PARAMETER.fullmatch(segment) or (
        _LITERAL.fullmatch(segment) and segment not in (".", "..")
    ):
        return
    if "{" in segment or "}" in segment:
        what = "a parameter is a whole segment of letters, digits and _, such as {customer}"
        raise ValueError(f"path {text!r}: '{segment}' is no parameter; {what}")
    raise ValueError(f"path {text!r}: '{segment}' is no path segment; percent-encode or rename it")
