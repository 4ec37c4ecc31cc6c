"""Write the reference of metrics, from their catalog."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.telemetry import catalog
from gateway.telemetry.catalog import METRICS, Metric, MetricKind

from .markdown import escape_markdown

_GROUPS = {
    "gateway_sidecar_": "Sidecar",
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

Every metric of a scrape of `telemetry.metrics.prometheus`. By OTLP they have the same names without
`_total`. If the configuration names its clusters, metrics of partitions, brokers, memory and writes
have the label `{catalog.CLUSTER}`, too.

No label identifies a client: routes, topics and reasons are the only values.
"""


def build_metrics_page() -> str:
    """Return the page."""
    groups: dict[str, list[Metric]] = {_OTHER: []}
    for metric in METRICS:
        name = next((g for prefix, g in _GROUPS.items() if metric.name.startswith(prefix)), _OTHER)
        groups.setdefault(name, []).append(metric)
    return "\n".join([_INTRODUCTION, *(_build_group(*group) for group in groups.items())])


def _build_group(name: str, metrics: Iterable[Metric]) -> str:
    lines = [f"## {name}\n"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        facts = [str(metric.kind), metric.unit, labels and f"labels {labels}"]
        lines.append(f"### `{metric.exposed_name}` {{ #{metric.exposed_name} }}\n")
        lines.append(
            f"{' · '.join(fact for fact in facts if fact)}\n\n{escape_markdown(metric.help)}\n"
        )
        if metric.kind is MetricKind.HISTOGRAM:
            bounds = ", ".join(f"{bound:g}" for bound in metric.bounds)
            lines.append(f"Buckets: {bounds}.\n")
    return "\n".join(lines)
