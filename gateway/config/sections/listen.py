"""Define the section `listen`: the address and TLS for clients, CORS, and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.config.types.address import AuthorityFile, Host, HostName, Origin, Proxies
from gateway.config.types.fields import Duration, File, Flag, Number, Rate, Text, in_range
from gateway.config.types.section import Problem, Section


class Allow(Section):
    """What pages of other sites may do. By default all is allowed, except sending credentials."""

    origins: tuple[Origin, ...] = Field(
        default=(),
        description="Origins of pages, such as https://shop.example; default all. For web pages.",
    )
    methods: tuple[Text, ...] = Field(
        default=(),
        description="Methods besides GET, HEAD and POST, which are always allowed; default all. "
        "For web pages.",
    )
    headers: tuple[Text, ...] = Field(
        default=(),
        description="Request headers besides `last-event-id`, which is always allowed; default "
        "all. For web pages.",
    )
    credentials: Flag = Field(
        default=False,
        description="Allow requests with cookies; needs a list of `origins`. For pages behind a "
        "login.",
    )


class Expose(Section):
    """What scripts of other sites may see of a response besides its body."""

    headers: tuple[Text, ...] = Field(
        default=(),
        description="Response headers that scripts may read, besides ETag, Link, Location and "
        "Retry-After. For scripts that read headers which a proxy adds.",
    )


class AccessControl(Section):
    """CORS: whether and how pages of other sites may use the gateway. The options are Zilla's."""

    policy: Literal["same-origin", "cross-origin"] = Field(
        default="same-origin",
        description="cross-origin allows pages of other sites, as far as `allow` says. For pages "
        "on other hosts.",
    )
    allow: Allow = Field(
        default=Allow(), description="What pages of other sites may do. For cross-origin pages."
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=600.0,
        alias="max-age",
        description="How long a browser may keep the response to a preflight. For pages with many "
        "requests.",
    )
    expose: Expose = Field(
        default=Expose(),
        description="What scripts may see besides the body. For cross-origin pages.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of credentials for every origin (Fetch 3.3.5)."""
        allow = raw.get("allow")
        if isinstance(allow, Mapping) and allow.get("credentials") in (True, "true"):
            origins = allow.get("origins")
            if not origins or (isinstance(origins, (list, tuple)) and "*" in origins):
                what = "browsers refuse credentials for every origin; list the origins"
                yield Problem(("allow", "credentials"), what)


class WebSocket(Section):
    """What the gateway agrees to in the handshake of a WebSocket."""

    compression: Flag = Field(
        default=False,
        description="Compress messages (RFC 7692), each once for all clients that get it. For "
        "clients on slow networks.",
    )


class ListenTls(Section):
    """The TLS of the gateway's port. Changed files are loaded without a restart."""

    old_names: ClassVar[Mapping[str, str]] = {"trust": "ca"}

    certificate: File = Field(
        description="PEM file of the certificate chain, leaf first. For gateways without a proxy."
    )
    key: File = Field(
        description="PEM file of the certificate's private key. For gateways without a proxy."
    )
    ca: AuthorityFile | None = Field(
        default=None,
        description="PEM file of the certificate authorities of clients. With it, clients are "
        "asked for a certificate. For x509 guards.",
    )
    mutual: Literal["requested", "required"] = Field(
        default="requested",
        description="required refuses connections without a client certificate. For closed "
        "networks.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "mutual" in raw and "ca" not in raw:
            yield Problem(("mutual",), "'mutual' needs 'ca', the authorities; add it", is_key=True)


class Limits(Section):
    """Limits on connections and requests; each holds for all workers together.

    A stream over HTTP counts as one connection, and so does a WebSocket with all its streams.
    """

    connections: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="The most connections at a time; further clients are told when to come back. "
        "For operators who size hosts.",
    )
    per_address: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="The most connections at a time of one address (IPv6: of one /64 network). For "
        "public gateways.",
    )
    per_identity: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="The most connections at a time of one identity, as the first guard of a route "
        "names it. For fairness among users.",
    )
    rate: Rate | None = Field(
        default=None,
        description="The most requests of one address in a time, such as 20/s. Requests that "
        "guards refuse count, and so do the messages of a WebSocket after the first 100. For "
        "public gateways.",
    )
    burst: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="How many requests of `rate` may come at once; default the number of `rate`. "
        "For pages with many streams.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "burst" in raw and "rate" not in raw:
            yield Problem(("burst",), "'burst' needs 'rate'; add it", is_key=True)


class Listen(Section):
    """The port for clients: its address, TLS, CORS and limits."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to bind. The default is reached from this machine only; 0.0.0.0 is "
        "for containers, and :: for IPv4 and IPv6.",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names that the header Host may have, besides IP addresses, localhost and "
        "`host`; '*' for any. Default none if `host` is a loopback address, otherwise any. For "
        "protection against DNS rebinding.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=8080, description="Port to bind; 0 binds a free port. For operators and tests."
    )
    access_control: AccessControl = Field(
        default=AccessControl(),
        alias="access-control",
        description="CORS of all routes without their own. For pages of other sites.",
    )
    websocket: WebSocket = Field(
        default=WebSocket(), description="Options of WebSockets. For WebSocket clients."
    )
    tls: ListenTls | None = Field(
        default=None,
        description="HTTPS and WSS by the gateway itself; default neither. For gateways without a "
        "proxy.",
    )
    workers: Annotated[Number, in_range(1, 256, str)] = Field(
        default=1,
        description="Number of processes that share the port. Each reads Kafka and has caches "
        "itself. For hosts with several cores.",
    )
    limits: Limits = Field(
        default=Limits(),
        description="Limits on connections and requests; default none. For public gateways.",
    )
    forwarded: Proxies = Field(
        default=False,
        description="The proxies whose X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Prefix "
        "are trusted: a list of addresses and networks, or true for every peer. For gateways "
        "behind a proxy.",
    )
    probe: Flag = Field(
        default=True,
        description="Whether `/health/front` tells `gateway check --front` what of its requests "
        "arrives through the proxy: the client's address, and the lengths of headers. For gateways "
        "behind a proxy.",
    )
    keep_alive_timeout: Annotated[Duration, in_range(1, 3600)] = Field(
        default=75.0,
        description="How long a connection without a request stays open. Longer than the proxy in "
        "front keeps it, since a request on a connection that is just being closed fails: AWS has "
        "60 s, Google 600 s. For gateways behind a proxy.",
    )
    drain_timeout: Annotated[Duration, in_range(0.1, 3600)] = Field(
        default=5.0,
        description="How long clients have to receive the end of their streams when the gateway "
        "stops. For operators.",
    )
