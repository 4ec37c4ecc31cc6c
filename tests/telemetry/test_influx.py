"""Figures sent as line protocol, as its grammar reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.influx import parse_points, running_influx_receiver

from gateway.telemetry import catalog, influx
from gateway.telemetry.counts import Histogram
from gateway.telemetry.influx import InfluxExporter, build_write_url, iter_lines
from gateway.telemetry.samples import MetricSamples

NOW = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (("http://i:8086", "a b", "c", None), "/api/v2/write?org=a%20b&bucket=c&precision=ns"),
        (("http://i:8086/", None, "c", None), "/api/v2/write?bucket=c&precision=ns"),
        (("http://i:8086", None, None, "d&e"), "/write?db=d%26e&precision=ns"),
    ],
)
def test_a_bucket_and_a_database_are_written_to_at_their_own_paths(given, sent: str):
    assert build_write_url(*given).replace("+", "%20") == f"http://i:8086{sent}"


def test_figures_arrive_with_their_labels_as_tags_and_who_sends_them():
    figures, latency = MetricSamples(), Histogram()
    figures.add(catalog.CLIENTS, 3, "/a b", "sse")
    figures.add(catalog.STREAMS_OPENED, 5, "", "sse")  # of programs: no route
    latency.observe(0.0004, 2)
    latency.observe(100.0)
    figures.add_histogram(catalog.DELIVERY_LATENCY_SECONDS, latency, "/a", "sse")
    with running_influx_receiver() as back:
        push = InfluxExporter(
            build_write_url(back.url, "shop", "figures", None), "s3cret", "orders"
        )
        assert push.send(figures)
        push.close()
        ((path, headers, points),) = back.requests
    assert path == "/api/v2/write?org=shop&bucket=figures&precision=ns"
    assert headers["authorization"] == "Token s3cret"
    clients, opened, told = points
    assert (clients.name, clients.fields) == ("gateway_clients", {"value": 3})
    assert clients.tags["route"] == "/a b" and clients.tags["service"] == "orders"
    assert clients.tags["instance"]
    assert opened.name == "gateway_streams_opened_total" and "route" not in opened.tags
    assert told.fields["count"] == told.fields["+Inf"] == 3
    assert told.fields["sum"] == pytest.approx(100.0008)
    assert told.fields["0.0005"] == told.fields["60.0"] == 2
    assert math.isclose(len(told.fields), len(latency.bounds) + 3)


@given(st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_number_is_one_line(label: str, value: float):
    figures = MetricSamples()
    figures.add(catalog.REACTIVE_WAITING_RECORDS, value, label)
    figures.add(catalog.WORKERS, 1)
    text = "".join(iter_lines(figures, {"service": "a"}, NOW))
    assert text.count("\n") == 2
    point, _ = [parse_points(line)[0] for line in text.split("\n")[:-1]]
    assert point.fields == {"value": value}
    plain = label.replace("\\", "/").replace("\r", " ").replace("\n", " ")
    assert point.tags.get("group", "") == plain


def test_many_series_go_in_several_requests():
    figures = MetricSamples()
    for number in range(influx.MAX_LINES_PER_REQUEST + 1):
        figures.add(catalog.PARTITION_READY, 1, "orders", number)
    with running_influx_receiver() as back:
        push = InfluxExporter(
            build_write_url(back.url, None, None, "figures"), "ann:secret", "orders"
        )
        assert push.send(figures)
        push.close()
        assert [len(points) for _, _, points in back.requests] == [
            influx.MAX_LINES_PER_REQUEST,
            1,
        ]


def test_a_server_that_refuses_or_is_away_is_told(caplog: pytest.LogCaptureFixture):
    figures = MetricSamples()
    figures.add(catalog.WORKERS, 1)
    with running_influx_receiver() as back:
        back.status = 401
        push = InfluxExporter(build_write_url(back.url, None, "figures", None), "s3cret", "orders")
        assert not push.send(figures)
    assert not push.send(figures)
    push.close()
    assert "InfluxDB answered 401" in caplog.text and "InfluxDB cannot be reached" in caplog.text
    assert "s3cret" not in caplog.text
