"""The rules of deploy/prometheus: they are valid, name what exists, and each alert fires and
resolves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.promql import (
    RULE_FILES,
    RULES,
    SCRAPE_LABELS,
    Rule,
    RuleCase,
    find_faults,
    find_metrics,
    list_recorded,
    list_series,
    load_rules,
    load_yaml,
    run_promtool,
    run_rule_tests,
)

from gateway.telemetry.catalog import METRICS, MetricKind
from gateway.telemetry.prometheus import expose
from gateway.telemetry.samples import MetricSamples

ALERTS = load_rules(RULE_FILES[1])
ALL_RULES = [rule for path in RULE_FILES for rule in load_rules(path)]

GATEWAY = 'job="gateway", instance="a"'
SIDECAR = 'job="gateway-sidecar", instance="a"'
PIPELINE = 'job="gateway-pipeline", instance="a", exported_job="paid"'
TP = 'topic="orders", partition="0"'
TOPIC = 'topic="orders"'
GROUP = 'group="billing", topic="orders"'
LATENCY = "gateway_delivery_latency_seconds"
ROUTE = f'{GATEWAY}, route="/a", wire="sse"'
EXPIRY = "gateway_certificate_expiry_timestamp_seconds"
LAG = "gateway_event_loop_lag_seconds"

# A counter that grows once, in minute 2, is over ten minutes later.
ONCE = "0 0 1x30"
CASES = {
    "GatewayKafkaUnreachable": RuleCase(
        {f"gateway_kafka_reachable{{{GATEWAY}}}": "1 0x4 1x9"}, 3, 7
    ),
    "GatewayPartitionLeaderless": RuleCase(
        {f'gateway_partition_state{{{GATEWAY}, {TP}, state="leaderless"}}': "_ 1x4 _x9"}, 3, 12
    ),
    "GatewayPartitionNotReady": RuleCase(
        {
            f"gateway_partition_ready{{{GATEWAY}, {TP}}}": "1 0x5 1x9",
            f"gateway_kafka_reachable{{{GATEWAY}}}": "1x20",
        },
        4,
        8,
    ),
    "GatewayPartitionLag": RuleCase(
        {
            f"gateway_partition_lag_records{{{GATEWAY}, {TP}}}": "0 5000x9 0x9",
            f'gateway_fetched_records_total{{{GATEWAY}, {TOPIC}, reader="tail"}}': "0+60x30",
        },
        7,
        12,
    ),
    "GatewayOpenTransaction": RuleCase(
        {f"gateway_partition_open_transaction_seconds{{{GATEWAY}, {TP}}}": "_ 60+60x4 _x9"}, 4, 12
    ),
    "GatewayThrottled": RuleCase(
        {f"gateway_kafka_throttled_seconds_total{{{GATEWAY}}}": "0+30x10 300x20"}, 8, 18
    ),
    "GatewayRecordsLost": RuleCase(
        {f'gateway_gaps_total{{{GATEWAY}, {TOPIC}, reason="retention"}}': ONCE}, 3, 14
    ),
    "GatewayInvalidRecords": RuleCase(
        {f'gateway_invalid_records_total{{{GATEWAY}, {TOPIC}, outcome="skip"}}': ONCE}, 9, 14
    ),
    "GatewaySlowClients": RuleCase(
        {
            f'gateway_clients_behind{{{GATEWAY}, route="/a", state="slow"}}': "0 10x8 0x9",
            f'gateway_clients{{{GATEWAY}, route="/a", wire="sse"}}': "100x20",
        },
        7,
        12,
    ),
    "GatewayRefusedConnections": RuleCase(
        {f'gateway_refused_connections_total{{{GATEWAY}, limit="rate"}}': "0+60x15 900x20"}, 8, 25
    ),
    "GatewayLatencyFastBurn": RuleCase(
        {
            f'{LATENCY}_bucket{{{ROUTE}, le="1.0"}}': "0+50x20 1050+100x99",
            f"{LATENCY}_count{{{ROUTE}}}": "0+100x120",
        },
        10,
        30,
    ),
    "GatewayLatencySlowBurn": RuleCase(
        {
            f'{LATENCY}_bucket{{{ROUTE}, le="1.0"}}': "0+90x60 5490+100x99",
            f"{LATENCY}_count{{{ROUTE}}}": "0+100x160",
        },
        40,
        95,
    ),
    "GatewayDown": RuleCase({f"up{{{GATEWAY}}}": "1 0x4 1x9"}, 3, 7),
    "GatewayWorkerMissing": RuleCase({f"gateway_workers_missing{{{GATEWAY}}}": "0 1x4 0x9"}, 3, 7),
    "GatewayWorkerRestarted": RuleCase(
        {f'gateway_worker_restarts_total{{{GATEWAY}, worker="2"}}': ONCE}, 3, 14
    ),
    "GatewayMemoryNearLimit": RuleCase(
        {
            f'gateway_memory_bytes{{{GATEWAY}, part="tables"}}': "0 45x5 10x9",
            f'gateway_memory_bytes{{{GATEWAY}, part="cache"}}': "50x20",
            f"gateway_memory_limit_bytes{{{GATEWAY}}}": "100x20",
        },
        5,
        9,
    ),
    "GatewayEventLoopLag": RuleCase(
        {
            f'{LAG}_bucket{{{GATEWAY}, worker="1", le="0.1"}}': "0 0x12 240+240x20",
            f'{LAG}_bucket{{{GATEWAY}, worker="1", le="0.25"}}': "0+240x40",
            f'{LAG}_bucket{{{GATEWAY}, worker="1", le="+Inf"}}': "0+240x40",
        },
        9,
        25,
    ),
    "GatewayFileDescriptors": RuleCase(
        {
            f'process_open_fds{{{GATEWAY}, worker="1"}}': "10 900x8 10x9",
            f'process_max_fds{{{GATEWAY}, worker="1"}}': "1000x20",
        },
        7,
        12,
    ),
    "GatewayReloadFailed": RuleCase(
        {f"gateway_last_reload_successful{{{GATEWAY}}}": "1 0x3 1x9"}, 2, 7
    ),
    "GatewayGuardNotReady": RuleCase(
        {f'gateway_guard_ready{{{GATEWAY}, guard="login"}}': "1 0x5 1x9"}, 4, 9
    ),
    "GatewayCertificateExpires": RuleCase(
        {f"{EXPIRY}{{{GATEWAY}}}": "9999999 90000x70 9999999x9"},
        65,
        75,
    ),
    "GatewayCertificateExpiresSoon": RuleCase(
        {f"{EXPIRY}{{{GATEWAY}}}": "9999999 90000x5 9999999x9"},
        3,
        8,
    ),
    "SidecarDeadLetters": RuleCase(
        {f'gateway_reactive_records_total{{{SIDECAR}, {GROUP}, outcome="dead"}}': ONCE}, 3, 14
    ),
    "SidecarLanesHeldUp": RuleCase(
        {f'gateway_reactive_held_up_lanes{{{SIDECAR}, group="billing"}}': "0 2x8 0x9"}, 7, 12
    ),
    "SidecarGroupLag": RuleCase(
        {
            f"gateway_reactive_lag_records{{{SIDECAR}, {GROUP}}}": "0 5000x9 0x9",
            f'gateway_reactive_records_total{{{SIDECAR}, {GROUP}, outcome="processed"}}': "0+60x30",
        },
        8,
        13,
    ),
    "SidecarRecordsMissed": RuleCase(
        {f'gateway_consumer_missing_records_total{{{SIDECAR}, group="billing"}}': ONCE}, 3, 14
    ),
    "SidecarAuditRecordsLost": RuleCase(
        {f'gateway_audit_records_total{{{SIDECAR}, outcome="dropped"}}': ONCE}, 3, 14
    ),
    "SidecarQueryNotRunning": RuleCase(
        {f'gateway_ksqldb_query_running{{{SIDECAR}, query="totals"}}': "1 0x5 1x9"}, 4, 8
    ),
    "PipelineNotRunning": RuleCase({f"gateway_pipeline_running{{{PIPELINE}}}": "1 0x5 1x9"}, 4, 8),
    "PipelineRecordsLost": RuleCase(
        {f"gateway_pipeline_gaps_total{{{PIPELINE}, {TOPIC}}}": ONCE}, 3, 14
    ),
    "PipelineBehind": RuleCase(
        {
            f"gateway_pipeline_behind_offsets{{{PIPELINE}, {TOPIC}}}": "0 5000x9 0x9",
            f"gateway_pipeline_rows_per_second{{{PIPELINE}}}": "1x20",
        },
        8,
        12,
    ),
    "PipelineAlert": RuleCase(
        {f'gateway_pipeline_alerts{{{PIPELINE}, alert="late"}}': "0 1x4 0x9"}, 3, 7
    ),
}


def name_of(rule: Rule) -> str:
    return rule.name


@pytest.mark.needs("promtool")
def test_prometheus_accepts_the_rules_and_the_configuration():
    run_promtool("check", "rules", *RULE_FILES)
    run_promtool("check", "config", RULES / "prometheus.yml")


@pytest.mark.needs("promtool")
def test_each_alert_fires_while_there_is_a_cause_and_resolves_after_it(tmp_path: Path):
    assert {alert.name for alert in ALERTS} == CASES.keys()
    run_rule_tests(CASES, tmp_path)


@pytest.mark.parametrize("rule", ALL_RULES, ids=name_of)
def test_a_rule_names_metrics_and_labels_of_the_catalog(rule: Rule):
    assert find_faults(rule.expression) == []


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_an_alert_says_what_and_how_much(alert: Rule):
    assert "$labels." in alert.annotations["summary"]
    assert "$value" in alert.annotations["description"]


@pytest.mark.parametrize("alert", ALERTS, ids=name_of)
def test_the_labels_in_the_texts_of_an_alert_are_left_by_its_expression(alert: Rule):
    series = {**list_series(), **list_recorded()}
    used = set(re.findall(r"\$labels\.(\w+)", "".join(alert.annotations.values())))
    kept = {
        name.strip()
        for part in re.findall(r"\bby\s*\(([^()]*)\)", alert.expression)
        for name in part.split(",")
    }
    if not kept:  # nothing is aggregated: all labels stay
        names = find_metrics(alert.expression)
        kept = {label for name in names for label in series[name]} | SCRAPE_LABELS
    assert used <= kept


def test_the_example_scrapes_jobs_that_the_alerts_know():
    jobs = [each["job_name"] for each in load_yaml(RULES / "prometheus.yml")["scrape_configs"]]
    (down,) = [alert for alert in ALERTS if alert.name == "GatewayDown"]
    (pattern,) = re.findall(r'job=~"([^"]*)"', down.expression)
    assert jobs and all(re.fullmatch(pattern, job) for job in jobs)


@pytest.mark.needs("promtool")
def test_prometheus_finds_nothing_to_say_about_the_names_of_metrics():
    samples = MetricSamples()
    for metric in METRICS:
        labels = ["1" for _ in metric.labels]
        if metric.kind is MetricKind.HISTOGRAM:
            samples.merge({metric.name: [[labels, [1] * (len(metric.bounds) + 1) + [1.0]]]})
        else:
            samples.add(metric, 1, *labels)
    text = b"".join(expose(samples, "").pieces)
    assert run_promtool("check", "metrics", stdin=text) == ""
