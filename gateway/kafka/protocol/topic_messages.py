"""Define CreateTopics and DescribeConfigs, the requests about topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .codec import FieldReader, FieldWriter
from .requests import KafkaRequest, VersionRange

BROKER_DEFAULT = -1  # for the number of partitions or replicas: the broker's default (KIP-464)


class CreateTopicsResponse(NamedTuple):
    error: int
    message: str


@dataclass(slots=True)
class CreateTopicsRequest(KafkaRequest[CreateTopicsResponse]):
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
        # Before version 4 the broker refuses -1 (KIP-464).
        without_defaults = version < 4
        out.array(1)
        out.string(self.topic)
        out.i32(1 if without_defaults and self.partitions == BROKER_DEFAULT else self.partitions)
        out.i16(1 if without_defaults and self.replicas == BROKER_DEFAULT else self.replicas)
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
        response = CreateTopicsResponse(-1, "the broker's answer does not mention it")
        for _ in range(read.array()):
            read.string()  # name
            if version >= 7:
                read.uuid()
            response = CreateTopicsResponse(read.i16(), read.string() or "")
            if version < 5:
                continue
            read.i32()  # number of partitions
            read.i16()  # number of replicas
            for _ in range(read.array()):
                read.string()  # name of a config
                read.string()  # its value
                read.i8()  # read only
                read.i8()  # source
                read.i8()  # sensitive
                read.tags()
            read.tags()
        return response


_TOPIC_RESOURCE_TYPE = 2


class DescribeConfigsResponse(NamedTuple):
    """The configs of one topic; none without the permission DESCRIBE_CONFIGS."""

    throttle_ms: int
    error: int
    values: dict[str, str | None]


@dataclass(slots=True)
class DescribeConfigsRequest(KafkaRequest[DescribeConfigsResponse]):
    """Ask for configs of one topic, such as its cleanup policy; unset ones have their defaults."""

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
