"""What is said where a library of an extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.config import loads
from gateway.errors import ConfigError, ExtraMissing, FormatError
from gateway.extras import EXTRA_MODULES, describe_missing_module, require_extra
from gateway.formats.codec import compile_schema
from gateway.formats.registry import Schema
from gateway.formats.serialization import SerializationFormat

KAFKA = "servers: [a:9092]"
CATALOG = "catalogs: {r: {type: schema-registry, url: 'http://r'}}"
RUN = "import sys; sys.modules.update(dict.fromkeys({names})); from gateway.cli import main; main()"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, extra: str) -> str:
    """Python finds none of an extra's modules."""
    for name in EXTRA_MODULES[extra]:
        monkeypatch.setitem(sys.modules, name, None)
    return extra


def build_topic(model: str) -> str:
    value = f"{{model: {model}, catalog: r}}"
    return f"{CATALOG}\nkafka: {{{KAFKA}, topics: [{{name: o, value: {value}}}]}}"


def build_sidecar(options: str) -> str:
    return f"{CATALOG}\nkafka: {{{KAFKA}}}\nsidecar: {{{options}}}"


@pytest.mark.parametrize(
    ("extra", "text", "option"),
    [
        ("avro", build_topic("avro"), "kafka.topics[0].value.model"),
        ("protobuf", build_topic("protobuf"), "kafka.topics[0].value.model"),
        ("avro", build_sidecar("producer: {keyFormat: avro}"), "sidecar.producer.keyFormat"),
        (
            "protobuf",
            build_sidecar("consumer: {}, topics: {o: {valueFormat: protobuf}}"),
            "sidecar.topics.o.valueFormat",
        ),
        (
            "otel",
            f"kafka: {{{KAFKA}}}\ntelemetry: {{metrics: {{otlp: 'http://o:4318'}}}}",
            "telemetry.metrics.otlp",
        ),
        (
            "otel",
            f"kafka: {{{KAFKA}}}\ntelemetry: {{traces: {{otlp: 'http://o:4318'}}}}",
            "telemetry.traces.otlp",
        ),
        (
            "ksqldb",
            build_sidecar("ksqldb: {url: 'http://k:8088', queries: {q: {sql: select 1}}}"),
            "sidecar.ksqldb",
        ),
    ],
)
def test_a_configuration_that_needs_an_extra_is_refused_with_its_name(
    without: str, text: str, option: str
):
    with pytest.raises(ConfigError) as error:
        loads(text)
    (problem,) = (each for each in error.value.problems if "not installed" in each)
    assert f"{option}: " in problem and f"'kafka-gateway[{without}]'" in problem


@pytest.mark.parametrize("extra", ["avro", "protobuf", "otel", "ksqldb"])
def test_a_configuration_with_json_needs_no_extra(without: str):
    assert loads(build_sidecar("producer: {valueFormat: json}, consumer: {}"))


@pytest.mark.parametrize(
    ("extra", "format", "text"),
    [
        ("avro", SerializationFormat.AVRO, '"string"'),
        ("protobuf", SerializationFormat.PROTOBUF, "message A {}"),
    ],
)
def test_a_schema_of_the_registry_names_the_extra_of_its_codec(
    without: str, format: SerializationFormat, text: str
):
    """A model of the configuration is checked at its start, a schema only when a record has it."""
    with pytest.raises(FormatError, match=rf"kafka-gateway\[{without}\]"):
        compile_schema(Schema(1, format, text, {}))


@pytest.mark.parametrize("extra", EXTRA_MODULES)
def test_every_extra_can_be_required(without: str):
    with pytest.raises(ExtraMissing, match=rf"^it needs .* 'kafka-gateway\[{without}\]'"):
        require_extra(without, "it")


def test_a_module_of_several_extras_is_of_the_one_that_the_command_is_named_like():
    assert "[pipeline]" in str(describe_missing_module("confluent_kafka.admin", "pipeline"))
    assert "[demo]" in str(describe_missing_module("confluent_kafka", "run"))
    assert describe_missing_module("mine") is None


@pytest.mark.needs("process")
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(("demo", "--port", "0", "--no-browser"), "demo"), (("pipeline", "demo"), "pipeline")],
)
def test_a_command_without_its_extra_ends_with_one_line(arguments: tuple[str, ...], extra: str):
    """It was a traceback that ended in ModuleNotFoundError."""
    code = RUN.format(names=list(EXTRA_MODULES[extra]))
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"kafka-gateway[{extra}]" in line
