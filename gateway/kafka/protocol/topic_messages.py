"""CreateTopics: topics of the gateway's own, made where they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .codec import FieldReader, FieldWriter
from .requests import KafkaRequest, VersionRange

BROKER_DEFAULT = -1  # partitions, replicas: as the broker is set


class CreateTopicsResponse(NamedTuple):
    """`error` is Kafka's code, with what the broker says of it."""

    error: int
    message: str


@dataclass(slots=True)
class CreateTopicsRequest(KafkaRequest[CreateTopicsResponse]):
    """One topic. timeout in milliseconds, until it is made."""

    API_KEY = 19
    NAME = "CreateTopics"
    VERSIONS = VersionRange(2, 7, 5)

    topic: str
    partitions: int = BROKER_DEFAULT
    replicas: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = 5000

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        old = version < 4  # which knows no defaults (KIP-464)
        out.array(1)
        out.string(self.topic)
        out.i32(1 if old and self.partitions == BROKER_DEFAULT else self.partitions)
        out.i16(1 if old and self.replicas == BROKER_DEFAULT else self.replicas)
        out.array(0)  # assignments
        out.array(len(self.configs))
        for name, value in self.configs.items():
            out.string(name)
            out.string(value)
            out.tags()
        out.tags()
        out.i32(self.timeout_ms)
        out.i8(0)  # validate only
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> CreateTopicsResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        read.i32()  # throttle time
        made = CreateTopicsResponse(-1, "the broker said nothing of it")
        for _ in range(read.array()):
            read.string()
            if version >= 7:
                read.uuid()
            made = CreateTopicsResponse(read.i16(), read.string() or "")
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
