"""Write the reference of metrics, from their catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.telemetry import catalog
from gateway.telemetry.catalog import METRICS, Metric, MetricKind

from .markdown import escape_markdown

_GROUPS = {
    **dict.fromkeys(
        (
            "gateway_sidecar_",
            "gateway_ksqldb_",
            "gateway_audit_",
            "gateway_reactive_",
            "gateway_consumer_",
            "gateway_dead_letters",
            "gateway_replays",
            "gateway_chaos_",
        ),
        "Sidecar",
    ),
    "gateway_pipeline_": "Pipelines",
    "gateway_partition_": "Partitions",
    "gateway_broker_": "Brokers",
    "gateway_kafka_": "Brokers",
    "gateway_produce": "Writes",
    "process_": "Process",
}
_OTHER = "Clients and the gateway"

_INTRODUCTION = f"""\
# Metrics

The metrics of `telemetry.metrics.prometheus`, with their labels. Names that end in
`_total` are counters, those marked as histograms have buckets, and others are gauges. In InfluxDB
they have the same names, by OTLP those without `_total`. If the configuration names its clusters,
metrics of partitions, brokers, memory and writes have the label `{catalog.CLUSTER}`, too. No label
identifies a client.

"""


def build_metrics_page() -> str:
    """Return the page."""
    groups: dict[str, list[Metric]] = {_OTHER: []}
    for metric in METRICS:
        name = next((g for prefix, g in _GROUPS.items() if metric.name.startswith(prefix)), _OTHER)
        groups.setdefault(name, []).append(metric)
    parts = [_INTRODUCTION + "\n".join(_describe_buckets()) + "\n"]
    return "\n".join([*parts, *(_build_group(*group) for group in groups.items())])


def _describe_buckets() -> Iterator[str]:
    """Yield a line for the buckets of each unit, which its histograms share."""
    histograms = {m.unit: m.bounds for m in METRICS if m.kind is MetricKind.HISTOGRAM}
    for unit, bounds in histograms.items():
        yield f"- Buckets of {unit}: {', '.join(f'{bound:g}' for bound in bounds)}."


def _build_group(name: str, metrics: Iterable[Metric]) -> str:
    lines = [f"## {name}\n\n"]
    for metric in metrics:
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        kind = " (histogram)" if metric.kind is MetricKind.HISTOGRAM else ""
        text = escape_markdown(metric.help)
        lines.append(f"- `{metric.exposed_name}{labels}`{kind}: {text}\n")
    return "".join(lines)
