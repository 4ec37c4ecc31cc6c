from __future__ import annotations

from gateway.pipeline.exactly_once.input_topics import ALERT_AFTER_S, LogEnd, OpenTransactions
from gateway.pipeline.reports import Reports
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples


def test_a_transaction_that_stays_open_is_an_alert_and_what_waits_behind_it_counts():
    """A job that read nothing behind one had no backlog, and no other sign of it."""
    now = [0.0]
    reports = Reports()
    transactions = OpenTransactions("paid", reports, lambda: now[0])

    def update(stable: int, end: int) -> tuple[float, list[str]]:
        transactions.update({("orders", 0): LogEnd(7, 7), ("orders", 1): LogEnd(stable, end)})
        samples = MetricSamples()
        reports.collect_metrics(samples)
        behind = samples[catalog.PIPELINE_BEHIND_OFFSETS]["paid", "orders"]
        return behind, list(reports.get_alerts("paid").values())

    assert update(5, 15) == (10, [])
    now[0] += ALERT_AFTER_S
    assert update(20, 30) == (10, [])  # another one
    now[0] += ALERT_AFTER_S
    behind, (message,) = update(20, 40)
    assert behind == 20
    assert "topic orders partition 1 offset 20" in message
    assert update(40, 40) == (0, [])
