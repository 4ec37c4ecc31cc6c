"""Convert the bindings before the routes: `tcp`, `tls`, `http`, `sse` and `ws` servers."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue

from .bindings import Binding, BindingGraph, Way

CONVERT_KEYS = "openssl pkcs12 -in STORE.p12 -nodes -out listen.pem"
_SECTION = ("listen",)
_ONE_SCHEME = "the port is HTTPS with listen.tls, and otherwise HTTP"
_NO_HTTP2 = "the gateway speaks HTTP/1.1 and WebSocket; let a proxy in front speak HTTP/2"


@dataclass(frozen=True, slots=True)
class _Entry:
    port: SourceValue
    tcp: Binding
    tls: Binding | None


def convert_listen(graph: BindingGraph, draft: Draft) -> None:
    """Convert the port, its TLS, and CORS. Of several ports, one with TLS or the first is kept."""
    ways = [way for proxy in graph.proxies for way in graph.find_ways(proxy)]
    entries = [entry for way in ways for entry in _list_entries(way)]
    chosen = next((entry for entry in entries if entry.tls is not None), None)
    chosen = chosen or next(iter(entries), None)
    if chosen is not None:
        draft.carry(chosen.tcp.options.get("host"), *_SECTION, "host")
        draft.carry(chosen.port, *_SECTION, "port", value=_parse_port(chosen.port))
        if chosen.tls is not None:
            _convert_tls(chosen.tls, draft)
    port = None if chosen is None else _parse_port(chosen.port)
    for tcp in graph.list_used("tcp", "server"):
        _convert_tcp(tcp, port)
    for tls in graph.list_used("tls", "server"):
        if chosen is None or tls is not chosen.tls:
            tls.source.omit("the gateway has one port, with one certificate")
    servers = graph.list_used("http", "server")
    for http in servers:
        _convert_http(http, draft, is_only=len(servers) == 1)
    for sse in graph.list_used("sse", "server"):
        sse.options.get("retry").omit(
            "the gateway sends `retry:` itself, spread so that clients do not return all at once"
        )
        sse.options.get("requests").omit(
            "values are checked by the model of their topic: kafka.topics[].value"
        )
        for route in sse.routes:
            route.get("with").omit("has no counterpart here")
    for ws in graph.list_used("ws", "server"):
        for when in (when for route in ws.routes for when in route.get("when")):
            when.get("protocol").omit(
                "every stream is a WebSocket too; its subprotocols are its own"
            )
            when.get("scheme").imply(_ONE_SCHEME)
            when.get("authority").omit("routes do not depend on the host; see listen.hosts")


def _list_entries(way: Way) -> list[_Entry]:
    if not way or way[0].binding.type != "tcp":
        return []
    first = way[0]
    tls = next((step.binding for step in way if step.binding.type == "tls"), None)
    option = first.binding.options.get("port")
    ports = list(option) if isinstance(option.value, list) else [option]
    allowed = [
        text
        for when in (first.route.get("when") if first.route is not None else ())
        for text in when.get("port").list_texts()
    ]
    return [
        _Entry(port, first.binding, tls)
        for port in ports
        if _parse_port(port) is not None and (not allowed or port.text in allowed)
    ]


def _parse_port(port: SourceValue) -> int | str | None:
    """Return a port, or a variable that holds it; None for a range."""
    if port.text.startswith("${env."):
        return port.text
    return int(port.text) if port.text.isdecimal() else None


def _convert_tcp(tcp: Binding, port: int | str | None) -> None:
    reason = f"the gateway listens on one port, {port}; run another gateway for another port"
    for route in tcp.routes:
        for when in route.get("when"):
            if when.get("port").list_texts() == [str(port)]:
                when.get("port").imply("is the only port")
            when.get("port").omit(reason)
            when.get("authority").omit("routes do not depend on the host; see listen.hosts")
            when.get("cidr").omit(
                "clients are not chosen by address; let a firewall or a proxy do that"
            )
    tcp.options.get("port").omit(reason)
    tcp.options.get("host").omit("the gateway listens on one address")


def _convert_tls(tls: Binding, draft: Draft) -> None:
    section = (*_SECTION, "tls")
    certificate = draft.need_variable(
        "LISTEN_CERTIFICATE", f"PEM file of the certificate chain ({CONVERT_KEYS})"
    )
    key = draft.need_variable("LISTEN_KEY", "PEM file of its private key; may be the same file")
    draft.set((*section, "certificate"), certificate)
    draft.set((*section, "key"), key)
    draft.comment(section, f"from binding {tls.name}; keys are PEM files here, not in a vault")
    tls.options.get("keys").carry(*section, "certificate")
    tls.source.get("vault").omit(
        "the gateway reads PEM files, which LISTEN_CERTIFICATE and LISTEN_KEY name", section
    )
    mutual = tls.options.get("mutual")
    trust = tls.options.get("trust")
    if mutual.text in ("required", "requested") or trust.exists:
        authorities = draft.need_variable(
            "LISTEN_CA", "PEM file of the certificate authorities of clients"
        )
        draft.set((*section, "ca"), authorities)
        trust.carry(*section, "ca")
        draft.set((*section, "mutual"), mutual.text or "required")
        mutual.carry(*section, "mutual")
    mutual.imply("clients are asked for no certificate")
    tls.options.get("trustcacerts").omit("list the authorities of clients in the file LISTEN_CA")
    tls.options.get("sni").omit("there is one certificate, for every name; see listen.hosts")
    tls.options.get("signers").omit("the authorities of clients are in the file LISTEN_CA")
    tls.options.get("version").omit("TLS 1.2 and 1.3 are spoken")
    tls.options.get("authorization").omit(
        "a guard of type x509 reads the client's certificate without it"
    )
    for protocol in tls.options.get("alpn"):
        if protocol.text == "http/1.1":
            protocol.imply("HTTP/1.1 is what the gateway speaks")
        protocol.omit(_NO_HTTP2)
    for route in tls.routes:
        route.get("when").omit("every connection to the port is served; see listen.hosts")


def _convert_http(http: Binding, draft: Draft, *, is_only: bool) -> None:
    versions = http.options.get("versions")
    for version in versions:
        if version.text == "http/1.1":
            version.imply("HTTP/1.1 is what the gateway speaks")
        version.omit(_NO_HTTP2)
    if is_only:
        carry_access_control(http.options.get("access-control"), draft, _SECTION)
    # Credentials of guards are converted with the guards.
    http.options.get("overrides").omit("request headers are not replaced; see with.overrides")
    http.options.get("requests").omit(
        "what clients write is checked by the model of its topic: kafka.topics[].value"
    )
    for route in http.routes:
        route.get("with").omit("request headers are not replaced; see with.overrides")
        for when in route.get("when"):
            for name, value in when.get("headers").items():
                if name == ":scheme":
                    value.imply(_ONE_SCHEME)
                elif name == ":authority":
                    value.omit("routes do not depend on the host; see listen.hosts")
                elif name not in (":path", ":method"):
                    value.omit("routes depend on the path and the method only")


def carry_access_control(source: SourceValue, draft: Draft, section: tuple[str | int, ...]) -> None:
    target = (*section, "access-control")
    draft.carry(source.get("policy"), *target, "policy")
    for name in ("origins", "methods", "headers", "credentials"):
        draft.carry(source.get("allow", name), *target, "allow", name)
    max_age = source.get("max-age")
    draft.carry(max_age, *target, "max-age", value=f"{max_age.text}s")
    draft.carry(source.get("expose", "headers"), *target, "expose", "headers")
