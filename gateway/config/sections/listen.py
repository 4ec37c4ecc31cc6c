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
        default=(), description="Origins of pages, such as https://shop.example; default all."
    )
    methods: tuple[Text, ...] = Field(
        default=(), description="Methods besides GET, HEAD and POST; default all."
    )
    headers: tuple[Text, ...] = Field(
        default=(), description="Request headers besides `last-event-id`; default all."
    )
    credentials: Flag = Field(
        default=False, description="Allow requests with cookies; needs a list of `origins`."
    )


class Expose(Section):
    """What scripts of other sites may see of a response besides its body."""

    headers: tuple[Text, ...] = Field(
        default=(),
        description="Response headers, besides ETag, Link, Location and Retry-After.",
    )


class AccessControl(Section):
    """CORS: whether and how pages of other sites may use the gateway. The options are Zilla's."""

    policy: Literal["same-origin", "cross-origin"] = Field(
        default="same-origin",
        description="cross-origin allows pages of other sites, as far as `allow` says.",
    )
    allow: Allow = Field(
        default=Allow(),
        description="What pages of other sites may do; by default everything but sending "
        "credentials.",
    )
    max_age: Annotated[Duration, in_range(0, 86_400)] = Field(
        default=600.0,
        alias="max-age",
        description="How long a browser may keep the response to a preflight.",
    )
    expose: Expose = Field(
        default=Expose(), description="What scripts of other sites may see besides the body."
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
        description="Compress messages (RFC 7692), each once for all clients that get it.",
    )


class ListenTls(Section):
    """The TLS of the gateway's port. Changed files are loaded without a restart."""

    old_names: ClassVar[Mapping[str, str]] = {"trust": "ca"}

    certificate: File = Field(description="PEM file of the certificate chain, leaf first.")
    key: File = Field(description="PEM file of its private key.")
    ca: AuthorityFile | None = Field(
        default=None,
        description="PEM file of the authorities of clients, which are then asked for a "
        "certificate, for x509 guards.",
    )
    mutual: Literal["requested", "required"] = Field(
        default="requested",
        description="required refuses connections without a client certificate.",
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
        description="The most connections at a time; others are told when to come back.",
    )
    per_address: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="The most connections of one address (IPv6: of one /64 network).",
    )
    per_identity: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="The most connections of one identity, as the route's first guard names it.",
    )
    rate: Rate | None = Field(
        default=None,
        description="The most requests of one address, such as 20/s, also those for pages "
        "and those that are refused, and messages of a WebSocket after the first 100. Health "
        "checks do not count.",
    )
    burst: Annotated[Number, in_range(1, 10**7, str)] | None = Field(
        default=None,
        description="How many requests may come at once; default the number of `rate`.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "burst" in raw and "rate" not in raw:
            yield Problem(("burst",), "'burst' needs 'rate'; add it", is_key=True)


class Listen(Section):
    """The port for clients: its address, TLS, CORS and limits."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to bind. Only this machine reaches the default; 0.0.0.0 is for "
        "containers, :: for IPv4 and IPv6.",
    )
    hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names that Host may have, besides IP addresses, localhost and `host`; '*' "
        "for any. Default none if `host` is a loopback address (against DNS rebinding), "
        "otherwise any.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=8080, description="Port to bind; 0 binds a free port."
    )
    access_control: AccessControl = Field(
        default=AccessControl(),
        alias="access-control",
        description="CORS of all routes without their own.",
    )
    websocket: WebSocket = Field(default=WebSocket(), description="Options of WebSockets.")
    tls: ListenTls | None = Field(default=None, description="HTTPS and WSS by the gateway itself.")
    workers: Annotated[Number, in_range(1, 256, str)] = Field(
        default=1,
        description="Processes that share the port. Each reads Kafka and has its own caches.",
    )
    limits: Limits = Field(default=Limits(), description="Limits on connections and requests.")
    forwarded: Proxies = Field(
        default=False,
        description="The proxies whose X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Prefix "
        "are trusted: a list of addresses and networks, or true for every peer.",
    )
    probe: Flag = Field(
        default=True,
        description="Whether `/health/front` tells `gateway check --front` what arrives through "
        "the proxy.",
    )
    keep_alive_timeout: Annotated[Duration, in_range(1, 3600)] = Field(
        default=75.0,
        description="How long an idle connection stays open: longer than the proxy in front "
        "keeps it, or some requests fail. AWS has 60 s, Google 600 s.",
    )
    drain_timeout: Annotated[Duration, in_range(0.1, 3600)] = Field(
        default=5.0,
        description="How long clients have to receive the end of their streams at a stop.",
    )
