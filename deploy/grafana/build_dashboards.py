"""Write the dashboards for Grafana, gateway.json, sidecar.json and pipeline.json, from tables.

    python deploy/grafana/build_dashboards.py

Import the files into Grafana, or let it provision them. The data source, the scrape job and the
instances are variables. Change a panel here, in its table, and run this again: the files are
compared with what this builds, and every query with the metrics that there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

DIRECTORY = Path(__file__).parent
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 24, 8  # of Grafana's grid; a panel is a third of a row wide
PANELS_PER_ROW = 3
SELECTED = 'job=~"$job", instance=~"$instance"'
"""The matchers of the variables; `@` stands for them in the tables below."""


class Panel(NamedTuple):
    """A panel of time series.

    Attributes:
        title: What it shows.
        unit: Grafana's name of the unit.
        description: What is good, and where to look if it is not.
        queries: Expressions in PromQL, with `@` for the chosen job and instances, by the legend.
        is_stacked: Whether the series add up.
    """

    title: str
    unit: str
    description: str
    queries: Mapping[str, str]
    is_stacked: bool = False


class Section(NamedTuple):
    """A row of panels with a title."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """A dashboard.

    Attributes:
        uid: Its name in URLs, and that of its file.
        title: Its title.
        info_metric: The metric whose labels `job` and `instance` can be chosen.
        sections: Its rows.
    """

    uid: str
    title: str
    info_metric: str
    sections: Sequence[Section]


RATE = "[$__rate_interval]"

STREAMS = Section("Streams", [
    Panel("Records delivered", "cps",
          "Records written to clients, per second. One record to ten clients counts ten times.",
          {"{{route}} {{wire}}":
           f"sum by (route, wire) (rate(gateway_deliveries_total{{@}}{RATE}))"}),
    Panel("Delivery latency", "s",
          "From a record's timestamp to the write to a client. The objective is 99 % within 1 s.",
          {f"{{{{route}}}} {percent}":
           f"histogram_quantile({quantile}, sum by (route, le) "
           f"(rate(gateway_delivery_latency_seconds_bucket{{@}}{RATE})))"
           for percent, quantile in (("50 %", 0.5), ("99 %", 0.99))}),
    Panel("Bytes sent", "Bps", "Bytes of streams, compressed where clients ask for it.",
          {"{{route}} {{wire}}":
           f"sum by (route, wire) (rate(gateway_sent_bytes_total{{@}}{RATE}))"}),
    Panel("Gaps sent to clients", "cps",
          "Each says that records are missing, and why. Reason skipped: the client was too slow.",
          {"{{route}} {{reason}}":
           f"sum by (route, reason) (rate(gateway_client_gaps_total{{@}}{RATE}))"}),
    Panel("Streams that ended", "cps",
          "By reason; left: the client disconnected.",
          {"{{reason}}": f"sum by (reason) (rate(gateway_streams_ended_total{{@}}{RATE})) > 0"}),
    Panel("Catching up", "cps",
          "Records that clients read privately, by source. Cache is cheap, kafka is not.",
          {"{{source}}": f"sum by (source) (rate(gateway_catchup_records_total{{@}}{RATE}))"}),
])  # fmt: skip

KAFKA = Section("Kafka", [
    Panel("Brokers answer", "short", "1 while brokers answer, else 0.",
          {"{{instance}} {{cluster}}": "min by (instance, cluster) (gateway_kafka_reachable{@})"}),
    Panel("Partitions that cannot be read", "short", "By topic. 0 is what you want.",
          {"{{topic}}": "count by (topic) (gateway_partition_ready{@} == 0) "
                        "or sum by (topic) (0 * gateway_partition_ready{@})"}),
    Panel("Partitions by state", "short", "All should be streaming.",
          {"{{state}}": "sum by (state) (gateway_partition_state{@})"}, is_stacked=True),
    Panel("Lag of the shared read", "short",
          "Offsets between what is read and the end. It should return to 0 between bursts.",
          {"{{topic}}": "sum by (topic) (gateway_partition_lag_records{@})"}),
    Panel("Records read", "cps", "Once for all clients (tail), and for clients behind (catchup).",
          {"{{topic}} {{reader}}":
           f"sum by (topic, reader) (rate(gateway_fetched_records_total{{@}}{RATE}))"}),
    Panel("Interrupted reads", "cps", "By cause, such as connection, no-leader, access-denied.",
          {"{{topic}} {{cause}}":
           f"sum by (topic, cause) (rate(gateway_partition_reconnects_total{{@}}{RATE})) > 0"}),
    Panel("Gaps found", "short", "Offsets that are gone, in the last hour.",
          {"{{topic}} {{reason}}":
           "sum by (topic, reason) (increase(gateway_gap_records_total{@}[1h]))"}),
    Panel("Requests to brokers", "s", "99th percentile by API. A Fetch waits for records.",
          {"{{api}}": "histogram_quantile(0.99, sum by (api, le) "
                      f"(rate(gateway_kafka_request_seconds_bucket{{@}}{RATE})))"}),
    Panel("Failed connections and requests", "cps", "By cause.",
          {"connect {{cause}}":
           f"sum by (cause) (rate(gateway_broker_connect_failures_total{{@}}{RATE}))",
           "{{api}} {{cause}}":
           f"sum by (api, cause) (rate(gateway_kafka_request_failures_total{{@}}{RATE}))"}),
    Panel("Records written", "cps", "Records of clients by outcome; unsent and refused are errors.",
          {"{{topic}} {{outcome}}":
           f"sum by (topic, outcome) (rate(gateway_produced_records_total{{@}}{RATE}))"}),
    Panel("Invalid records", "cps", "Records that do not match the model of their topic.",
          {"{{topic}} {{outcome}}":
           f"sum by (topic, outcome) (rate(gateway_invalid_records_total{{@}}{RATE}))"}),
])  # fmt: skip

CLIENTS = Section("Clients", [
    Panel("Open streams", "short", "Streams by route and wire.",
          {"{{route}} {{wire}}": "sum by (route, wire) (gateway_clients{@})"}, is_stacked=True),
    Panel("Clients behind", "short",
          "By why: slow (the connection), no-credit, max-rate, catching-up.",
          {"{{state}}": "sum by (state) (gateway_clients_behind{@})"}, is_stacked=True),
    Panel("The farthest behind", "short", "Offsets that the last client has not received.",
          {"{{route}} {{state}}":
           "max by (route, state) (gateway_clients_behind_records_max{@})"}),
    Panel("Stalls and falls", "cps",
          "Connections that did not accept all (stalls), and clients that fell out of the ring.",
          {"stalls {{route}}": f"sum by (route) (rate(gateway_client_stalls_total{{@}}{RATE}))",
           "falls {{route}} {{policy}}":
           f"sum by (route, policy) (rate(gateway_client_falls_total{{@}}{RATE}))"}),
    Panel("Refused connections", "cps", "By the limit that refused them.",
          {"{{limit}}": f"sum by (limit) (rate(gateway_refused_connections_total{{@}}{RATE}))"}),
    Panel("Errors", "cps", "Requests that were answered with an error, by HTTP status.",
          {"{{status}}": f"sum by (status) (rate(gateway_refused_requests_total{{@}}{RATE}))"}),
    Panel("WebSockets", "short", "Open WebSockets, with any number of streams.",
          {"{{instance}}": "sum by (instance) (gateway_websockets{@})"}),
    Panel("Streams opened", "cps", "New streams. A peak is a reconnect of many clients.",
          {"{{route}} {{wire}}":
           f"sum by (route, wire) (rate(gateway_streams_opened_total{{@}}{RATE}))"}),
    Panel("Guards", "short", "1 while the guard can decide about clients.",
          {"{{guard}}": "min by (guard) (gateway_guard_ready{@})"}),
])  # fmt: skip

MEMORY = Section("Memory and process", [
    Panel("Memory by part", "bytes",
          "The cache takes what the other parts leave. The limit is the option memory.",
          {"{{part}}": "sum by (part) (gateway_memory_bytes{@})"}, is_stacked=True),
    Panel("Memory that cannot be freed", "percentunit",
          "Of the option memory. From 50 % on, new clients are refused.",
          {"{{instance}}":
           "sum by (instance) "
           '(gateway_memory_bytes{@, part=~"tables|views|unsent|received|parsed|responses"}) '
           "/ sum by (instance) (gateway_memory_limit_bytes{@})"}),
    Panel("Resident memory", "bytes", "Of each worker.",
          {"{{instance}} {{worker}}": "process_resident_memory_bytes{@}"}),
    Panel("CPU", "percentunit", "Of one core. A worker uses at most one.",
          {"{{instance}} {{worker}}": f"rate(process_cpu_seconds_total{{@}}{RATE})"}),
    Panel("Event loop lag", "s", "99th percentile of each worker. More than 0.1 s delays clients.",
          {"{{instance}} {{worker}}":
           "histogram_quantile(0.99, sum by (instance, worker, le) "
           f"(rate(gateway_event_loop_lag_seconds_bucket{{@}}{RATE})))"}),
    Panel("File descriptors", "percentunit", "Of those that the process may use.",
          {"{{instance}} {{worker}}": "process_open_fds{@} / process_max_fds{@}"}),
    Panel("Workers", "short", "Those that answer, and those that do not.",
          {"present {{instance}}": "sum by (instance) (gateway_workers{@})",
           "missing {{instance}}": "sum by (instance) (gateway_workers_missing{@})"}),
    Panel("Restarts and reloads", "short", "In the last hour.",
          {"worker {{worker}}": "sum by (worker) (increase(gateway_worker_restarts_total{@}[1h]))",
           "reload {{outcome}}": "sum by (outcome) (increase(gateway_reloads_total{@}[1h]))"}),
    Panel("Log lines", "cps", "Warnings and errors.",
          {"{{level}}":
           "sum by (level) "
           f'(rate(gateway_log_lines_total{{@, level=~"warning|error|critical"}}{RATE}))'}),
])  # fmt: skip

SIDECAR_HTTP = Section("Requests", [
    Panel("Requests", "reqps", "By endpoint.",
          {"{{endpoint}}": f"sum by (endpoint) (rate(gateway_sidecar_requests_total{{@}}{RATE}))"}),
    Panel("Failed requests", "reqps", "By endpoint and status.",
          {"{{endpoint}} {{status}}":
           "sum by (endpoint, status) "
           f'(rate(gateway_sidecar_requests_total{{@, status=~"4..|5..|none"}}{RATE}))'}),
    Panel("Duration", "s", "99th percentile. A long poll waits for records.",
          {"{{endpoint}}": "histogram_quantile(0.99, sum by (endpoint, le) "
                           f"(rate(gateway_sidecar_seconds_bucket{{@}}{RATE})))"}),
    Panel("Consumer instances", "short", "By state, and the polls that wait.",
          {"{{state}}": "sum by (state) (gateway_consumer_instances{@})",
           "polling": "sum(gateway_consumer_polling{@})"}),
    Panel("Polls", "cps", "By outcome.",
          {"{{outcome}}": f"sum by (outcome) (rate(gateway_consumer_polls_total{{@}}{RATE}))"}),
    Panel("Audit records", "cps", "Dropped and failed ones are lost.",
          {"{{outcome}}": f"sum by (outcome) (rate(gateway_audit_records_total{{@}}{RATE}))"}),
])  # fmt: skip

SIDECAR_GROUPS = Section("Reactive groups", [
    Panel("Records settled", "cps", "Processed by the back end, or dead letters.",
          {"{{group}} {{topic}} {{outcome}}":
           f"sum by (group, topic, outcome) (rate(gateway_reactive_records_total{{@}}{RATE}))"}),
    Panel("Lag", "short", "Records that are not processed yet.",
          {"{{group}} {{topic}}": "sum by (group, topic) (gateway_reactive_lag_records{@})"}),
    Panel("Lanes held up", "short", "Lanes whose batch failed and waits for its next try.",
          {"{{group}}": "sum by (group) (gateway_reactive_held_up_lanes{@})"}),
    Panel("Answers of the back end", "s", "99th percentile.",
          {"{{group}}": "histogram_quantile(0.99, sum by (group, le) "
                        f"(rate(gateway_reactive_seconds_bucket{{@}}{RATE})))"}),
    Panel("Batches", "cps", "Answered, away (retried without limit) or suspect (retried, split).",
          {"{{group}} {{verdict}}":
           f"sum by (group, verdict) (rate(gateway_reactive_batches_total{{@}}{RATE}))"}),
    Panel("Repeated, lost and missing", "short", "In the last hour.",
          {"repeated {{group}}":
           "sum by (group) (increase(gateway_reactive_repeated_records_total{@}[1h]))",
           "lost partitions {{group}}":
           "sum by (group) (increase(gateway_reactive_lost_partitions_total{@}[1h]))",
           "missing {{group}}":
           "sum by (group) (increase(gateway_consumer_missing_records_total{@}[1h]))"}),
    Panel("Dead letters retried", "cps", "By outcome; parked: failed at the last retry.",
          {"{{outcome}}": f"sum by (outcome) (rate(gateway_dead_letters_total{{@}}{RATE}))"}),
    Panel("Replays", "short", "By state.",
          {"{{state}}": "max by (state) (gateway_replays{@})"}),
    Panel("ksqlDB queries", "short", "1 while the query returns rows.",
          {"{{query}}": "max by (query) (gateway_ksqldb_query_running{@})"}),
])  # fmt: skip

PIPELINE = Section("Jobs", [
    Panel("Jobs that run", "short", "1 while the job's query runs.",
          {"{{exported_job}}": "max by (exported_job) (gateway_pipeline_running{@})"}),
    Panel("Records read", "cps", "Input records of all batches.",
          {"{{exported_job}}":
           f"sum by (exported_job) (rate(gateway_pipeline_rows_total{{@}}{RATE}))"}),
    Panel("Records left", "short", "Offsets that were left after the latest batch.",
          {"{{exported_job}} {{topic}}":
           "sum by (exported_job, topic) (gateway_pipeline_behind_offsets{@})"}),
    Panel("Duration of batches", "s", "99th percentile of the whole batch.",
          {"{{exported_job}}":
           "histogram_quantile(0.99, sum by (exported_job, le) (rate("
           f'gateway_pipeline_batch_seconds_bucket{{@, phase="triggerExecution"}}{RATE})))'}),
    Panel("Time by phase", "percentunit", "Seconds per second. addBatch is work, others overhead.",
          {"{{exported_job}} {{phase}}":
           "sum by (exported_job, phase) (rate("
           f'gateway_pipeline_batch_seconds_sum{{@, phase!="triggerExecution"}}{RATE}))'}),
    Panel("Age of the watermark", "s", "How far event time is behind the clock.",
          {"{{exported_job}}":
           "max by (exported_job) (gateway_pipeline_watermark_age_seconds{@})"}),
    Panel("State", "short", "Rows by operator. It should not grow without end.",
          {"{{exported_job}} {{operator}}":
           "sum by (exported_job, operator) (gateway_pipeline_state_rows{@})"}),
    Panel("Size of the state", "bytes", "Files, and memory.",
          {"files {{exported_job}}":
           "sum by (exported_job) (gateway_pipeline_state_bytes{@})",
           "memory {{exported_job}}":
           "sum by (exported_job) (gateway_pipeline_state_memory_bytes{@})"}),
    Panel("Late and lost", "short", "In the last hour.",
          {"late {{exported_job}}":
           "sum by (exported_job) (increase(gateway_pipeline_late_rows_total{@}[1h]))",
           "gaps {{exported_job}}":
           "sum by (exported_job) (increase(gateway_pipeline_gaps_total{@}[1h]))"}),
    Panel("Starts and failures", "short", "In the last hour; after the first, starts are restarts.",
          {"starts {{exported_job}}":
           "sum by (exported_job) (increase(gateway_pipeline_starts_total{@}[1h]))",
           "{{error}} {{exported_job}}":
           "sum by (exported_job, error) (increase(gateway_pipeline_failures_total{@}[1h]))"}),
    Panel("Alerts of jobs", "short", "1 while an alert is raised.",
          {"{{exported_job}} {{alert}}":
           "max by (exported_job, alert) (gateway_pipeline_alerts{@})"}),
])  # fmt: skip

DASHBOARDS = (
    Dashboard("gateway", "Gateway", "gateway_info", [STREAMS, KAFKA, CLIENTS, MEMORY]),
    Dashboard(
        "gateway-sidecar", "Gateway: sidecar", "gateway_sidecar_requests_total",
        [SIDECAR_GROUPS, SIDECAR_HTTP, MEMORY],
    ),
    Dashboard("gateway-pipeline", "Gateway: Spark jobs", "gateway_pipeline_running", [PIPELINE]),
)  # fmt: skip


def build_dashboard(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard in Grafana's model."""
    panels: list[dict[str, Any]] = []
    top = 0
    for section in dashboard.sections:
        panels.append(_build_row(len(panels) + 1, section.title, top))
        top += 1
        for index, panel in enumerate(section.panels):
            row, column = divmod(index, PANELS_PER_ROW)
            width = COLUMNS // PANELS_PER_ROW
            place = {"h": HEIGHT, "w": width, "x": column * width, "y": top + row * HEIGHT}
            panels.append(_build_panel(len(panels) + 1, panel, place))
        top += -(-len(section.panels) // PANELS_PER_ROW) * HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["gateway", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _build_variables(dashboard.info_metric)},
        "annotations": {"list": [_build_alert_annotation()]},
        "links": [
            {"type": "dashboards", "tags": ["gateway"], "title": "Gateway", "asDropdown": True}
        ],
        "panels": panels,
    }


def _build_variables(info_metric: str) -> list[dict[str, Any]]:
    def query(name: str, definition: str) -> dict[str, Any]:
        return {
            "name": name, "label": name.capitalize(), "type": "query", "datasource": DATA_SOURCE,
            "query": {"query": definition, "refId": name}, "definition": definition,
            "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }  # fmt: skip

    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        query("job", f"label_values({info_metric}, job)"),
        query("instance", f'label_values({info_metric}{{job=~"$job"}}, instance)'),
    ]


def _build_alert_annotation() -> dict[str, Any]:
    return {
        "name": "Alerts", "enable": True, "iconColor": "red", "datasource": DATA_SOURCE,
        "expr": 'ALERTS{alertstate="firing", job=~"$job"}', "titleFormat": "{{alertname}}",
    }  # fmt: skip


def _build_row(id: int, title: str, top: int) -> dict[str, Any]:
    place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
    return {"id": id, "type": "row", "title": title, "collapsed": False, "gridPos": place,
            "panels": []}  # fmt: skip


def _build_panel(id: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none"}
    return {
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": {
                    "drawStyle": "line", "lineWidth": 1, "stacking": stacking,
                    "fillOpacity": 30 if panel.is_stacked else 10, "showPoints": "never",
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATA_SOURCE,
                "expr": expression.replace("@", SELECTED),
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(panel.queries.items())
        ],
    }  # fmt: skip


def render_dashboards() -> dict[str, str]:
    """Return the files by their names."""
    return {
        f"{each.uid}.json": json.dumps(build_dashboard(each), indent=2) + "\n"
        for each in DASHBOARDS
    }


def main() -> None:
    """Write the files beside this one."""
    for name, text in render_dashboards().items():
        (DIRECTORY / name).write_text(text)
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
