"""What operators may say of metrics, traces and logs."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Settings, build_json_schema, dumps, loads
from gateway.config.types.units import format_share, parse_share
from gateway.errors import ConfigError
from gateway.telemetry import logs

KAFKA = "kafka: {servers: [a:9092]}\n"


def telemetry(text: str) -> Any:
    return loads(f"{KAFKA}telemetry: {text}\n", environ={"KEY": "s3cret"}).telemetry


def test_what_is_not_said_is_scraped_and_neither_sent_nor_traced():
    made = telemetry("{}")
    assert (made.metrics.prometheus, made.metrics.otlp, made.traces.otlp) == (
        "/metrics",
        None,
        None,
    )
    assert (made.logs.format, made.logs.level, made.logs.levels) == ("console", "info", {})


def test_all_of_it_is_read_and_written_again():
    text = """{
      metrics: {prometheus: /figures, otlp: "http://c:4318", interval: 10s,
                influx: {url: "http://i", org: o, bucket: b, token: "${env.KEY}", interval: 5s}},
      traces: {otlp: "https://c/v1/traces", sample: 12.5%},
      logs: {format: json, level: warning, levels: {kafka: debug, uvicorn: error}},
      headers: {authorization: "${env.KEY}"}}"""
    made = telemetry(text)
    assert (made.metrics.interval, made.traces.sample) == (10.0, 0.125)
    assert made.logs.levels == {"kafka": "debug", "uvicorn": "error"}
    assert made.headers["authorization"].get_secret_value() == "s3cret"
    assert made.metrics.influx is not None and made.metrics.influx.interval == 5.0
    whole = loads(f"{KAFKA}telemetry: {text}\n", environ={"KEY": "s3cret"})
    written = dumps(whole)
    assert "s3cret" not in written and 'sample: "12.5%"' in written
    assert loads(written, environ={"KEY": "s3cret"}) == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{traces: {sample: 1}}", "1 is no share; write such as 1%"),
        ("{traces: {sample: 0.01}}", "0.01 is no share; write such as 1%"),
        ("{traces: {sample: '1'}}", "'1' has no unit; write a number and a unit, such as 1%"),
        ("{traces: {sample: 101%}}", "'101%' is more than all; the largest share is 100%"),
        ("{traces: {otlp: c:4318}}", "'c:4318' is no URL"),
        ("{traces: {otlp: 'http://a:b@c'}}", "a URL with credentials ends up in logs"),
        ("{metrics: {interval: 10ms}}", "10ms is out of range; use 1s to 1h"),
        ("{metrics: {influx: {url: 'http://i'}}}", "give it either bucket or db"),
        ("{metrics: {influx: {url: 'http://i', bucket: b, db: d}}}", "either bucket or db"),
        ("{metrics: {influx: {url: 'http://i', db: d, org: o}}}", "InfluxDB 1 has none"),
        ("{logs: {format: yaml}}", "format"),
        ("{logs: {level: loud}}", "level"),
        ("{logs: {levels: {kafak: debug}}}", "kafak"),
        ("{logs: {levels: {kafka.fecth: debug}}}", "did you mean 'kafka.fetch'?"),
        ("{logs: {levels: {fanout: debug}}}", "did you mean 'hub.fanout'?"),
        ("{logs: {levels: {kafka: loud}}}", "kafka"),
        ("{headers: {authorization: ''}}", "is empty"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(text: str, said: str):
    with pytest.raises(ConfigError, match=re.escape(said)):
        telemetry(text)


@given(st.integers(0, 10**6))
def test_a_share_is_written_as_it_is_read(millionths: int):
    part = millionths / 10**6
    assert parse_share(format_share(part)) == part


def test_the_schema_takes_what_is_taken_and_refuses_what_is_refused():
    validator = jsonschema.Draft202012Validator(build_json_schema())
    good = {"kafka": {"servers": ["a:9092"]}, "telemetry": {"traces": {"sample": "0.5%"}}}
    validator.validate(good)
    for bad in ({"traces": {"sample": 0.5}}, {"logs": {"levels": {"kafak": "debug"}}}):
        assert not validator.is_valid({**good, "telemetry": bad})


def test_each_room_and_level_that_may_be_named_is_one_of_the_log():
    levels = dict.fromkeys((*logs.COMPONENTS, *logs.LIBRARIES), "debug")
    Settings.model_validate(
        {"kafka": {"servers": ["a:9092"]}, "telemetry": {"logs": {"levels": levels}}}
    )
    for level in logs.LEVELS:
        assert telemetry(f"{{logs: {{level: {level}}}}}").logs.level == level
