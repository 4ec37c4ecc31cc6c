"""Convert the bindings before the routes (`tcp`, `tls`, `http`, `sse`, `ws`), and telemetry."""

from __future__ import annotations

from typing import NamedTuple

from gateway.config.types.section import Loc

from .bindings import Binding, BindingGraph, Way
from .draft import Draft
from .report import SourceValue


class _Entry(NamedTuple):
    port: SourceValue
    tcp: Binding
    tls: Binding | None


def convert_listen(graph: BindingGraph, draft: Draft) -> None:
    """Convert the port, its TLS, and CORS. Of several ports, one with TLS or the first is kept."""
    ways = [way for proxy in graph.proxies for way in graph.find_ways(proxy)]
    entries = [entry for way in ways for entry in _list_entries(way)]
    chosen = next((entry for entry in entries if entry.tls is not None), None)
    chosen = chosen or next(iter(entries), None)
    port = None if chosen is None else _parse_port(chosen.port)
    if chosen is not None:
        draft.carry(chosen.tcp.options.get("host"), "listen", "host")
        draft.carry(chosen.port, "listen", "port", value=port)
        if chosen.tls is not None:
            _convert_tls(chosen.tls, draft)
    for tcp in graph.list_used("tcp", "server"):
        _convert_tcp(tcp, port)
    for tls in graph.list_used("tls", "server"):
        if chosen is None or tls is not chosen.tls:
            tls.source.omit("the gateway has one port, with one certificate")
    servers = graph.list_used("http", "server")
    for http in servers:
        if len(servers) == 1:
            carry_access_control(http.options.get("access-control"), draft, ("listen",))
        for version in http.options.get("versions"):
            _imply_protocol(version)


def _list_entries(way: Way) -> list[_Entry]:
    if not way or way[0].binding.type != "tcp":
        return []
    tcp = way[0].binding
    tls = next((step.binding for step in way if step.binding.type == "tls"), None)
    option = tcp.options.get("port")
    ports = list(option) if isinstance(option.value, list) else [option]
    allowed = [text for when in way[0].conditions for text in when.get("port").list_texts()]
    return [
        _Entry(port, tcp, tls)
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
    for when in tcp.iter_conditions():
        if when.get("port").list_texts() == [str(port)]:
            when.get("port").imply("is the only port")
        when.get("port").omit(reason)
    tcp.options.get("port").omit(reason)


def _convert_tls(tls: Binding, draft: Draft) -> None:
    section = ("listen", "tls")
    chain = (
        "PEM file of the certificate chain (openssl pkcs12 -in STORE.p12 -nodes -out listen.pem)"
    )
    draft.set_variable((*section, "certificate"), "LISTEN_CERTIFICATE", chain)
    draft.set_variable(
        (*section, "key"), "LISTEN_KEY", "PEM file of its private key; may be the same file"
    )
    draft.comment(section, f"from binding {tls.name}; keys are PEM files here, not in a vault")
    tls.options.get("keys").carry(*section, "certificate")
    tls.source.get("vault").omit(
        "the gateway reads PEM files, which LISTEN_CERTIFICATE and LISTEN_KEY name", section
    )
    mutual, trust = tls.options.get("mutual"), tls.options.get("trust")
    if mutual.text in ("required", "requested") or trust.exists:
        authorities = "PEM file of the certificate authorities of clients"
        draft.set_variable((*section, "ca"), "LISTEN_CA", authorities)
        trust.carry(*section, "ca")
        draft.set((*section, "mutual"), mutual.text or "required")
        mutual.carry(*section, "mutual")
    for protocol in tls.options.get("alpn"):
        _imply_protocol(protocol)
    tls.source.explain("tls server")


def _imply_protocol(protocol: SourceValue) -> None:
    if protocol.text == "http/1.1":
        protocol.imply("HTTP/1.1 is what the gateway speaks")


def carry_access_control(source: SourceValue, draft: Draft, section: Loc) -> None:
    target = (*section, "access-control")
    draft.carry(source.get("policy"), *target, "policy")
    for name in ("origins", "methods", "headers", "credentials"):
        draft.carry(source.get("allow", name), *target, "allow", name)
    draft.carry_seconds(source.get("max-age"), *target, "max-age")
    draft.carry(source.get("expose", "headers"), *target, "expose", "headers")


def convert_telemetry(source: SourceValue, draft: Draft) -> None:
    for _, exporter in source.get("exporters").items():
        kind = exporter.get("type").text
        if kind == "prometheus":
            _convert_prometheus(exporter, draft)
        elif kind == "otlp":
            _convert_otlp(exporter, draft)
        elif kind == "stdout":
            exporter.get("type").imply("logs go to standard error; see telemetry.logs")
        else:
            exporter.omit(f"there is no exporter of type {kind}; use prometheus or otlp")


def _convert_prometheus(exporter: SourceValue, draft: Draft) -> None:
    target = ("telemetry", "metrics", "prometheus")
    exporter.get("type").carry(*target)
    draft.set(target, "/metrics")
    for index, endpoint in enumerate(exporter.get("options", "endpoints")):
        if index == 0:
            draft.carry(endpoint.get("path"), *target)
        if endpoint.get("port").value == draft.get(("listen", "port")):
            endpoint.get("port").imply("is the gateway's port")
        endpoint.explain("prometheus", target)


def _convert_otlp(exporter: SourceValue, draft: Draft) -> None:
    options = exporter.get("options")
    target = ("telemetry", "metrics", "otlp")
    signals = options.get("signals").list_texts()
    if signals and "metrics" not in signals:
        exporter.omit("logs are lines on standard error; let an agent collect them from there")
        return
    for signal in options.get("signals"):
        if signal.text == "metrics":
            signal.carry(*target)
    exporter.get("type").carry(*target)
    draft.carry(options.get("endpoint", "location"), *target)
    draft.carry_seconds(options.get("interval"), "telemetry", "metrics", "interval")
    options.explain("otlp", target)
    authorization = options.get("credentials", "headers", "authorization")
    if authorization.exists:
        header = ("telemetry", "headers", "authorization")
        draft.set(header, authorization.text)
        if not authorization.text.startswith("${env."):
            what = "the header `authorization` of requests to the collector"
            draft.set_variable(header, "OTLP_AUTHORIZATION", what)
        authorization.carry(*header)
