"""Which Kafka, which topics, and how patient to be with each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .fields import (
    Duration,
    File,
    Flag,
    SecretText,
    Servers,
    Size,
    Text,
    TopicName,
    Url,
    within,
)
from .section import Problem, Section, refusal, refused
from .template import MESSAGE, Template
from .units import show_duration

Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
ModelName = Literal[
    "string", "json", "bytes", "int", "long", "float", "double", "boolean",
    "avro", "protobuf", "jsonschema",
]  # fmt: skip
WITH_CATALOG = frozenset({"avro", "protobuf", "jsonschema"})


def _of_message(template: Template) -> Template:
    for hole in template.holes:
        if hole.root not in MESSAGE:
            raise refused(f"'${{{hole.text}}}' is unknown here; use ${{message.value.field}}")
    return template


MessageTemplate = Annotated[Template, AfterValidator(_of_message)]


class Tls(Section):
    """TLS to the brokers; `tls: {}` trusts the system's authorities."""

    ca: File | None = Field(
        default=None, description="PEM authorities. For clusters with their own CA."
    )
    certificate: File | None = Field(default=None, description="PEM client chain. For mutual TLS.")
    key: File | None = Field(default=None, description="PEM client key. For mutual TLS.")
    key_password: SecretText | None = Field(
        default=None, description="Password of the key. For mutual TLS with an encrypted key."
    )
    verify: Flag = Field(
        default=True,
        description="Check the broker's certificate and name. For test clusters to turn off.",
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        for one, other in (("certificate", "key"), ("key", "certificate"), ("keyPassword", "key")):
            if one in raw and other not in raw:
                yield Problem((one,), f"'{one}' needs '{other}' too; add it", key=True)


class Sasl(Section):
    """Who the gateway is to the brokers."""

    mechanism: Mechanism = Field(description="As the listener of the brokers. For secured ones.")
    username: Text | None = Field(default=None, description="Principal. For plain and scram.")
    password: SecretText | None = Field(
        default=None, description="Its password. For plain and scram."
    )
    token: SecretText | None = Field(
        default=None, description="A fixed token. For oauthbearer in tests."
    )
    token_file: File | None = Field(
        default=None, description="A file with the token, read anew. For oauthbearer in Kubernetes."
    )
    token_url: Url | None = Field(
        default=None, description="Where tokens are issued. For oauthbearer client credentials."
    )
    client_id: Text | None = Field(default=None, description="For oauthbearer client credentials.")
    client_secret: SecretText | None = Field(
        default=None, description="For oauthbearer client credentials."
    )
    scope: Text | None = Field(default=None, description="For oauthbearer client credentials.")

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        mechanism = raw.get("mechanism")
        names = {"username", "password"}
        oauth = {"token", "tokenFile", "tokenUrl", "clientId", "clientSecret", "scope"}
        if mechanism == "oauthbearer":
            yield from _foreign(raw, names, "oauthbearer")
            yield from _oauth(raw)
        elif isinstance(mechanism, str):
            yield from _foreign(raw, oauth, str(mechanism))
            for name in sorted(names - raw.keys()):
                yield Problem((), f"'{name}' is missing, {mechanism} needs it; add it", key=True)


def _foreign(raw: Mapping[str, Any], names: set[str], mechanism: str) -> Iterable[Problem]:
    for name in sorted(names & raw.keys()):
        yield Problem((name,), f"'{name}' is not used by {mechanism}; remove it", key=True)


def _oauth(raw: Mapping[str, Any]) -> Iterable[Problem]:
    ways = [name for name in ("token", "tokenFile", "tokenUrl") if name in raw]
    if not ways:
        yield Problem((), "oauthbearer has no token; add tokenUrl, tokenFile or token", key=True)
    for name in ways[1:]:
        yield Problem((name,), f"'{name}' excludes '{ways[0]}'; keep one", key=True)
    needed = {"clientId", "clientSecret"}
    if "tokenUrl" in raw:
        for name in sorted(needed - raw.keys()):
            yield Problem((), f"'{name}' is missing, tokenUrl needs it; add it", key=True)
    elif ways:
        for name in sorted((needed | {"scope"}) & raw.keys()):
            yield Problem((name,), f"'{name}' is used with tokenUrl only; remove it", key=True)


class Security(Section):
    tls: Tls | None = Field(
        default=None, description="Encrypt to the brokers. For secured clusters."
    )
    sasl: Sasl | None = Field(
        default=None, description="Log in to the brokers. For secured clusters."
    )


class Reconnect(Section):
    initial: Annotated[Duration, within(0.001, 60)] = Field(
        default=0.05,
        description="The first wait after a lost connection. For operators of flaky networks.",
    )
    max: Annotated[Duration, within(0.001, 600)] = Field(
        default=1.0,
        description="The longest wait between attempts. For operators of flaky networks.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.initial:
            low, high = show_duration(self.initial), show_duration(self.max)
            what = f"{high} is less than initial, {low}; use {low} or more"
            raise refusal(
                Problem(("max",) if "max" in self.model_fields_set else ("initial",), what)
            )
        return self


class Cache(Section):
    bytes: Annotated[Size, within(1, 1024**4, str)] = Field(
        default=64 * 1024**2,
        description="Memory for recent records. For late joiners and reconnects.",
    )
    age: Annotated[Duration, within(0, 30 * 86_400)] = Field(
        default=600.0, description="How long they are kept. For late joiners and reconnects."
    )


class Model(Section):
    """How bytes become a value."""

    model: ModelName = Field(
        default="bytes", description="The encoding. For the consumers of records."
    )
    catalog: Text | None = Field(
        default=None, description="A catalog of `catalogs`. For avro, protobuf and jsonschema."
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        model = raw.get("model")
        if isinstance(model, str) and model in WITH_CATALOG and "catalog" not in raw:
            what = f"model {model} needs a schema; add catalog: and a name of catalogs"
            yield Problem(("model",), what)
        if "catalog" in raw and isinstance(model, str) and model not in WITH_CATALOG:
            yield Problem(("catalog",), f"model {model} has no schema; remove catalog", key=True)


class Transform(Section):
    """Makes filters possible on what is inside the value, in zilla's words."""

    extract_key: MessageTemplate | None = Field(
        default=None,
        alias="extract-key",
        description="A key from the value. For topics without keys.",
    )
    extract_headers: dict[Text, MessageTemplate] = Field(
        default={},
        alias="extract-headers",
        description="Headers from the value. For header filters.",
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not raw:
            yield Problem((), "an empty transform; add extract-key or extract-headers")


class Topic(Section):
    name: TopicName = Field(description="The topic. For everyone.")
    default_offset: Literal["live", "historical"] = Field(
        default="live", description="Where a client without a position starts. For route owners."
    )
    partition_ready_timeout: Annotated[Duration, within(0, 300)] = Field(
        default=5.0,
        description="When BEGIN goes out with no partition ready. For clients of slow clusters.",
    )
    offset_out_of_range: Literal["earliest", "latest", "fail"] = Field(
        default="earliest",
        description="Where to go on when records are gone. For aggressive retention.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(),
        description="Waits between attempts; default kafka.reconnect. For operators.",
    )
    cache: Cache = Field(default=Cache(), description="Recent records in memory. For late joiners.")
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Whether open transactions are seen. For producers of them.",
    )
    clock_skew: Annotated[Duration, within(0, 86_400)] = Field(
        default=60.0, description="How wrong the producers' clocks may be. For starts by time."
    )
    key: Model = Field(default=Model(), description="How keys are read. For clients that filter.")
    value: Model = Field(default=Model(), description="How values are read. For the consumers.")
    transforms: tuple[Transform, ...] = Field(
        default=(), description="Keys and headers taken from values. For filters."
    )


class Kafka(Section):
    servers: Servers = Field(
        description="host:port of some brokers, or embedded for a demo. For everyone."
    )
    bootstrap: tuple[TopicName, ...] = Field(
        default=(), description="Topics warmed before readiness says yes. For operators."
    )
    topics: tuple[Topic, ...] = Field(
        default=(), description="The topics that may be read. For everyone."
    )
    client_id: Text = Field(
        default="", description="Name in the brokers' logs; default gateway-<name>. For operators."
    )
    rack: Text | None = Field(
        default=None,
        description="Rack or zone, to read from near replicas (KIP-392). For cloud bills.",
    )
    security: Security = Field(
        default=Security(), description="TLS and SASL. For secured clusters."
    )
    request_timeout: Annotated[Duration, within(0.1, 300)] = Field(
        default=5.0,
        description="When a silent broker counts as lost. For operators of slow networks.",
    )
    metadata_max_age: Annotated[Duration, within(0.05, 3600)] = Field(
        default=2.0,
        description="How soon a new leader is noticed. For operators of large clusters.",
    )
    reconnect: Reconnect = Field(
        default=Reconnect(), description="Default of the topics' reconnect. For operators."
    )

    @model_validator(mode="after")
    def _inherited(self) -> Self:
        """Topics without a `reconnect` of their own have this one."""
        topics = tuple(
            topic
            if "reconnect" in topic.model_fields_set
            else topic.model_copy(update={"reconnect": self.reconnect})
            for topic in self.topics
        )
        object.__setattr__(self, "topics", topics)
        return self

    def topic(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)
