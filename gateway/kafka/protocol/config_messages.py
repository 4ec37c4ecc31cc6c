"""Define DescribeConfigs, which reads the configs of a topic such as its cleanup policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .codec import FieldReader, FieldWriter
from .requests import KafkaRequest, VersionRange

_TOPIC_RESOURCE_TYPE = 2


class DescribeConfigsResponse(NamedTuple):
    """The configs of one topic; none without the permission DESCRIBE_CONFIGS."""

    throttle_ms: int
    error: int
    values: dict[str, str | None]


@dataclass(slots=True)
class DescribeConfigsRequest(KafkaRequest[DescribeConfigsResponse]):
    """Ask for configs of one topic; those that are not set have their defaults."""

    API_KEY = 32
    NAME = "DescribeConfigs"
    VERSIONS = VersionRange(1, 2, 4)

    topic: str
    names: Sequence[str] | None

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.array(1)
        out.i8(_TOPIC_RESOURCE_TYPE)
        out.string(self.topic)
        out.array(-1 if self.names is None else len(self.names))
        for name in self.names or ():
            out.string(name)
        out.i8(0)  # no synonyms
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> DescribeConfigsResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle, error = read.i32(), 0
        values: dict[str, str | None] = {}
        for _ in range(read.array()):
            error = read.i16()
            read.string()  # error message
            read.i8()  # resource type
            read.string()  # resource name
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
        return DescribeConfigsResponse(throttle, error, values)
