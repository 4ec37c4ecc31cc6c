"""A receiver of InfluxDB's line protocol in the test's own process, strict where its grammar is.

https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from support.posted import posted

NAME = r"(?:[^,= \\\n]|\\[,= ])+"  # of a measurement, a tag, a field, or a tag's value
LINE = re.compile(
    rf"(?P<name>{NAME})(?P<tags>(?:,{NAME}={NAME})*)"
    rf" (?P<fields>{NAME}=[^, \n]+(?:,{NAME}=[^, \n]+)*)"
    r" (?P<time>[0-9]{19})"
)
PAIR = re.compile(rf"({NAME})=({NAME})")


class Point(NamedTuple):
    name: str
    tags: Mapping[str, str]
    fields: Mapping[str, float]


@dataclass
class Receiver:
    """What came. status: what it answers with."""

    url: str
    status: int = 204
    requests: list[tuple[str, Mapping[str, str], list[Point]]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def value(self, name: str, **labels: str) -> float | None:
        """The last of one series; None before it came."""
        for _, _, points in reversed(self.requests):
            for point in points:
                if point.name == name and labels.items() <= point.tags.items():
                    return point.fields["value"]
        return None


def points_of(text: str) -> list[Point]:
    """Raises AssertionError for a line that is none."""
    return [_point(line) for line in text.removesuffix("\n").split("\n")]


def _point(line: str) -> Point:
    found = LINE.fullmatch(line)
    assert found is not None, f"no line protocol: {line!r}"
    tags = [(_plain(name), _plain(value)) for name, value in PAIR.findall(found["tags"])]
    assert len(dict(tags)) == len(tags), f"a tag is there twice: {line!r}"
    fields = {_plain(name): float(value) for name, value in PAIR.findall(found["fields"])}
    return Point(_plain(found["name"]), dict(tags), fields)


def _plain(text: str) -> str:
    return re.sub(r"\\([,= ])", r"\1", text)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """It listens until the block ends."""
    made = Receiver("")

    def hear(path: str, headers: Mapping[str, str], body: bytes) -> int:
        try:
            made.requests.append((path, headers, points_of(body.decode())))
        except AssertionError as error:
            made.wrong.append(str(error))
        return made.status

    with posted(hear) as made.url:
        yield made
