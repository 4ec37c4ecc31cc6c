"""A receiver of InfluxDB's line protocol in the test's own process, strict where its grammar is.

https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from support.post_server import running_post_server

NAME_PATTERN = r"(?:[^,= \\\n]|\\[,= ])+"  # of a measurement, a tag, a field, or a tag's value
LINE_PATTERN = re.compile(
    rf"(?P<name>{NAME_PATTERN})(?P<tags>(?:,{NAME_PATTERN}={NAME_PATTERN})*)"
    rf" (?P<fields>{NAME_PATTERN}=[^, \n]+(?:,{NAME_PATTERN}=[^, \n]+)*)"
    r" (?P<time>[0-9]{19})"
)
PAIR_PATTERN = re.compile(rf"({NAME_PATTERN})=({NAME_PATTERN})")


class InfluxPoint(NamedTuple):
    name: str
    tags: Mapping[str, str]
    fields: Mapping[str, float]


@dataclass
class InfluxReceiver:
    """What came. status: what it answers with."""

    url: str
    status: int = 204
    requests: list[tuple[str, Mapping[str, str], list[InfluxPoint]]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def get_value(self, name: str, **labels: str) -> float | None:
        """The last of one series; None before it came."""
        for _, _, points in reversed(self.requests):
            for point in points:
                if point.name == name and labels.items() <= point.tags.items():
                    return point.fields["value"]
        return None


def parse_points(text: str) -> list[InfluxPoint]:
    """Raises AssertionError for a line that is none."""
    return [_parse_point(line) for line in text.removesuffix("\n").split("\n")]


def _parse_point(line: str) -> InfluxPoint:
    found = LINE_PATTERN.fullmatch(line)
    assert found is not None, f"no line protocol: {line!r}"
    tags = [
        (_unescape(name), _unescape(value)) for name, value in PAIR_PATTERN.findall(found["tags"])
    ]
    assert len(dict(tags)) == len(tags), f"a tag is there twice: {line!r}"
    fields = {
        _unescape(name): float(value) for name, value in PAIR_PATTERN.findall(found["fields"])
    }
    return InfluxPoint(_unescape(found["name"]), dict(tags), fields)


def _unescape(text: str) -> str:
    return re.sub(r"\\([,= ])", r"\1", text)


@contextmanager
def running_influx_receiver() -> Iterator[InfluxReceiver]:
    """It listens until the block ends."""
    made = InfluxReceiver("")

    def handle_post(path: str, headers: Mapping[str, str], body: bytes) -> int:
        try:
            made.requests.append((path, headers, parse_points(body.decode())))
        except AssertionError as error:
            made.errors.append(str(error))
        return made.status

    with running_post_server(handle_post) as made.url:
        yield made
