"""Where clients come in: address, TLS, how many, and which other sites may read (CORS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.config.types.address import Host, HostName, Origin, Proxies
from gateway.config.types.fields import Duration, File, Flag, Number, Rate, Text, in_range
from gateway.config.types.section import Problem, Section


class Allow(Section):
    """What pages of other sites may do; without it, everything but credentials."""

    origins: tuple[Origin, ...] = Field(
        default=(),
        description="Origins such as https://shop.example; all when empty. For web pages.",
    )
    methods: tuple[Text, ...] = Field(
        default=(), description="Methods besides the simple ones; all when empty. For web pages."
    )
    headers: tuple[Text, ...] = Field(
        default=(), description="Request headers, last-event-id always among them. For web pages."
    )
    credentials: Flag = Field(
        default=False, description="Cookies may be sent along. For pages behind a login."
    )


class Expose(Section):
    headers: tuple[Text, ...] = Field(
        default=(),
        description="Response headers a page may read. For scripts that read more than data.",
    )


class AccessControl(Section):
    """CORS, in zilla's words."""

    policy: Literal["same-origin", "cross-origin"] = Field(
        default="same-origin",
        description="Whether other sites may read. For whoever hosts the pages.",
    )
    allow: Allow = Field(
        default=Allow(), description="What other sites may do. For cross-origin pages."
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=600.0,
        alias="max-age",
        description="How long a preflight is remembered. For busy pages.",
    )
    expose: Expose = Field(
        default=Expose(), description="What scripts may see. For cross-origin pages."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        allow = raw.get("allow")
        if isinstance(allow, Mapping) and allow.get("credentials") in (True, "true"):
            origins = allow.get("origins")
            if not origins or (isinstance(origins, (list, tuple)) and "*" in origins):
                what = "credentials for every origin is refused by browsers; list the origins"
                yield Problem(("allow", "credentials"), what)


class WebSocket(Section):
    compression: Flag = Field(
        default=False,
        description="Messages go out compressed (RFC 7692), once for all that get the same. "
        "For clients on slow lines.",
    )


class ListenTls(Section):
    certificate: File = Field(description="PEM chain, leaf first. For gateways without a proxy.")
    key: File = Field(description="PEM private key of it. For gateways without a proxy.")
    trust: File | None = Field(
        default=None,
        description="PEM authorities of clients, who are asked for a certificate. For x509 guards.",
    )
    mutual: Literal["requested", "required"] = Field(
        default="requested",
        description="Whether clients without a certificate are heard. For closed networks.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "mutual" in raw and "trust" not in raw:
            yield Problem(
                ("mutual",), "'mutual' needs 'trust', the authorities; add it", is_key=True
            )


class Limits(Section):
    """A stream over HTTP is a connection, and so is a WebSocket, whatever runs on it."""

    connections: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="Connections at once, of all workers together; those beyond are told to come "
        "back. For whoever sizes hosts.",
    )
    per_address: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="Connections of one address at once (of IPv6, of one /64 network). For "
        "gateways that strangers reach.",
    )
    per_identity: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="Connections at once of one who is known to the first guard of a route. For "
        "fairness among users.",
    )
    rate: Rate | None = Field(
        default=None,
        description="Requests of one address in so much time, such as 20/s, also those that guards "
        "refuse, and what sockets ask beyond 100 messages. For gateways that strangers reach.",
    )
    burst: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="How many of these may come at once; default the number of `rate`. For pages "
        "of many streams.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "burst" in raw and "rate" not in raw:
            yield Problem(("burst",), "'burst' needs 'rate'; add it", is_key=True)


class Listen(Section):
    host: Host = Field(default="127.0.0.1", description="Address to bind; 0.0.0.0 for containers.")
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names that clients may ask by, besides addresses, localhost and `host`; "
        "'*' for any. Without it a loopback `host` takes no others, and any other `host` takes "
        "all. Against pages whose name is made to lead here.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=8080, description="Port to bind, 0 for a free one. For operators and tests."
    )
    access_control: AccessControl = Field(
        default=AccessControl(),
        alias="access-control",
        description="CORS. For pages of other sites.",
    )
    websocket: WebSocket = Field(
        default=WebSocket(), description="What sockets agree to. For WebSocket clients."
    )
    tls: ListenTls | None = Field(
        default=None, description="HTTPS by the gateway itself. For gateways without a proxy."
    )
    workers: Annotated[Number, in_range(1, 256, str)] = Field(
        default=1,
        description="Processes that share the port; each reads Kafka on its own. For hosts with "
        "several cores.",
    )
    limits: Limits = Field(
        default=Limits(), description="How many may come in. For gateways that strangers reach."
    )
    forwarded: Proxies = Field(
        default=False,
        description="Whose X-Forwarded-For and X-Forwarded-Proto are believed: the listed "
        "addresses' and networks', or everybody's. For gateways behind a proxy.",
    )
    drain_timeout: Annotated[Duration, in_range(0.1, 3600)] = Field(
        default=5.0,
        description="How long clients have to take the end of their streams when the gateway "
        "ends. For operators.",
    )
