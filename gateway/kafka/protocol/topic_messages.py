"""CreateTopics: topics of the gateway's own, made where they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .codec import Reader, Writer
from .requests import Request, Versions

DEFAULT = -1  # partitions, replicas: as the broker is set


class TopicMade(NamedTuple):
    """`error` is Kafka's code, with what the broker says of it."""

    error: int
    message: str


@dataclass(slots=True)
class CreateTopicsRequest(Request[TopicMade]):
    """One topic. timeout in milliseconds, until it is made."""

    API = 19
    NAME = "CreateTopics"
    SPOKEN = Versions(2, 7, 5)

    topic: str
    partitions: int = DEFAULT
    replicas: int = DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    timeout: int = 5000

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        old = version < 4  # which knows no defaults (KIP-464)
        out.array(1)
        out.string(self.topic)
        out.i32(1 if old and self.partitions == DEFAULT else self.partitions)
        out.i16(1 if old and self.replicas == DEFAULT else self.replicas)
        out.array(0)  # assignments
        out.array(len(self.configs))
        for name, value in self.configs.items():
            out.string(name)
            out.string(value)
            out.tags()
        out.tags()
        out.i32(self.timeout)
        out.i8(0)  # validate only
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> TopicMade:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        read.i32()  # throttle time
        made = TopicMade(-1, "the broker said nothing of it")
        for _ in range(read.array()):
            read.string()
            if version >= 7:
                read.uuid()
            made = TopicMade(read.i16(), read.string() or "")
            if version < 5:
                continue
            read.i32()
            read.i16()
            for _ in range(read.array()):
                read.string()
                read.string()
                read.i8()
                read.i8()
                read.i8()
                read.tags()
            read.tags()
        return made
