"""Convert telemetry: exporters of metrics and logs."""

from __future__ import annotations

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue

_SECTION = ("telemetry",)


def convert_telemetry(source: SourceValue, draft: Draft) -> None:
    source.get("attributes").omit("metrics have the gateway's name; add labels where you scrape")
    source.get("metrics").omit("all metrics are always counted, under names of their own")
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
    target = (*_SECTION, "metrics", "prometheus")
    exporter.get("type").carry(*target)
    draft.set(target, "/metrics")
    endpoints = list(exporter.get("options", "endpoints"))
    for endpoint in endpoints:
        if endpoint is endpoints[0]:
            draft.carry(endpoint.get("path"), *target)
        endpoint.get("path").omit("metrics have one path", target)
        if endpoint.get("port").value == draft.get(("listen", "port")):
            endpoint.get("port").imply("is the gateway's port")
        endpoint.get("port").omit("metrics are on the gateway's own port, listen.port", target)
        endpoint.get("scheme").imply("metrics are on the gateway's own port")


def _convert_otlp(exporter: SourceValue, draft: Draft) -> None:
    options = exporter.get("options")
    target = (*_SECTION, "metrics", "otlp")
    signals = options.get("signals").list_texts()
    if signals and "metrics" not in signals:
        exporter.omit("logs are lines on standard error; let an agent collect them from there")
        return
    for signal in options.get("signals"):
        if signal.text == "metrics":
            signal.carry(*target)
        signal.omit("logs are lines on standard error; let an agent collect them", target)
    exporter.get("type").carry(*target)
    endpoint = options.get("endpoint")
    draft.carry(endpoint.get("location"), *target)
    endpoint.get("protocol").imply("OTLP is sent over HTTP")
    endpoint.get("overrides").omit("/v1/metrics is added to the address", target)
    interval = options.get("interval")
    draft.carry(interval, *_SECTION, "metrics", "interval", value=f"{interval.text}s")
    options.get("tls").omit("the certificate authorities of the system are trusted", target)
    authorization = options.get("credentials", "headers", "authorization")
    if authorization.exists:
        reference = authorization.text
        if not reference.startswith("${env."):
            reference = draft.need_variable(
                "OTLP_AUTHORIZATION", "the header `authorization` of requests to the collector"
            )
        draft.set((*_SECTION, "headers", "authorization"), reference)
        authorization.carry(*_SECTION, "headers", "authorization")
