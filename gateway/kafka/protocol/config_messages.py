"""DescribeConfigs: how long a topic keeps what it deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .codec import Reader, Writer
from .requests import Request, Versions

_TOPIC = 2  # resource type


class ConfigsAnswer(NamedTuple):
    """`error` is Kafka's code: describing configs needs a right of its own."""

    throttle_ms: int
    error: int
    values: dict[str, str | None]


@dataclass(slots=True)
class DescribeConfigsRequest(Request[ConfigsAnswer]):
    """Some configs of one topic, None for all, defaults filled in."""

    API = 32
    NAME = "DescribeConfigs"
    SPOKEN = Versions(1, 2, 4)

    topic: str
    names: Sequence[str] | None

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        out.array(1)
        out.i8(_TOPIC)
        out.string(self.topic)
        out.array(-1 if self.names is None else len(self.names))
        for name in self.names or ():
            out.string(name)
        out.i8(0)  # no synonyms
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> ConfigsAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle, error = read.i32(), 0
        values: dict[str, str | None] = {}
        for _ in range(read.array()):
            error = read.i16()
            read.string()
            read.i8()
            read.string()
            for _ in range(read.array()):
                name = read.string() or ""
                values[name] = read.string()
                read.i8()  # read only
                read.i8()  # source
                read.i8()  # sensitive
                for _ in range(read.array()):  # synonyms
                    read.string()
                    read.string()
                    read.i8()
        return ConfigsAnswer(throttle, error, values)
