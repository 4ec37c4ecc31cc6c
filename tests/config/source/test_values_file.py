"""Single options in the words of light-4j's values.yml, beside the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings, load
from gateway.config.source.values_file import VALUE_KEYS
from gateway.errors import ConfigError

BASE = """
kafka: {servers: ["a:1"]}
sidecar:
  producer: {keyFormat: "${kafka-producer.keyFormat:json}"}
  consumer: {}
  reactive: {groups: {group: g, topics: [t]}}
  audit: {}
  deadLetter: {}
"""


def loaded(tmp_path: Path, values: str, base: str = BASE) -> Settings:
    (tmp_path / "a.yaml").write_text(base)
    (tmp_path / "values.yml").write_text(values)
    return load(tmp_path / "a.yaml", values=tmp_path / "values.yml")


def test_the_seeds_formats_are_set_for_writers_and_readers(tmp_path):
    made = loaded(
        tmp_path,
        "kafka-producer.keyFormat: binary\nkafka-producer.valueFormat: string\n"
        "kafka-consumer.keyFormat: binary\nkafka-consumer.valueFormat: string\n",
    ).sidecar
    assert made is not None and made.producer and made.consumer and made.reactive
    for each in (made.producer, made.consumer, *made.reactive.groups):
        assert (each.key_format, each.value_format) == ("binary", "string")


def test_without_values_a_text_has_what_stands_behind_the_colon(tmp_path):
    made = loaded(tmp_path, "health.useJson: true").sidecar
    assert made is not None and made.producer
    assert made.producer.key_format == "json"
    assert made.health.use_json


def test_times_are_milliseconds_and_sizes_bytes(tmp_path):
    made = loaded(
        tmp_path,
        "health.timeout: 750\nserver.maxTransferFileSize: 2000000\nserver.httpsPort: 8443\n"
        "kafka-consumer.fetch.max.bytes: 1000\nkafka-consumer.backendApiHost: http://b:1\n"
        "kafka-consumer.batchRollbackThreshold: 30\nkafka-producer.auditEnabled: false\n",
    )
    side = made.sidecar
    assert side is not None and side.producer and side.consumer and side.reactive and side.audit
    assert (side.health.timeout, side.producer.max_bytes) == (0.75, 2_000_000)
    assert made.listen.port == 8443
    assert side.consumer.fetch_max_bytes == side.reactive.groups[0].fetch_max_bytes == 1000
    assert side.reactive.groups[0].backend.host == "http://b:1"
    assert side.reactive.groups[0].batch_rollback_threshold == 0.3
    assert side.audit.to == "off"


def test_what_is_for_a_part_that_is_off_changes_nothing(tmp_path):
    base = 'kafka: {servers: ["a:1"]}\nsidecar: {}\n'
    made = loaded(tmp_path, "kafka-producer.keyFormat: binary", base).sidecar
    assert made is not None and made.producer is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("kafka-producer.keyFromat: json", "1:1: unknown key 'kafka-producer.keyFromat'; did you"),
        ("health.timeout: '\uff15'", "1:17: health.timeout: '\uff15' is not a whole number"),
        ("\nhealth.timeout: soon", "2:17: health.timeout: 'soon' is not a whole number"),
        ("health.enabled: maybe", "1:17: health.enabled: 'maybe' is neither true nor false"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, values: str, said: str):
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, values)
    assert f"values.yml:{said}" in str(refused.value)


def test_a_value_that_is_missing_is_told(tmp_path):
    base = BASE.replace(":json}", "}")
    with pytest.raises(ConfigError, match=r"'kafka-producer\.keyFormat' has no value"):
        loaded(tmp_path, "health.timeout: 1", base)


def test_every_key_leads_to_an_option(tmp_path):
    """Whatever the table says is read as an option that there is: an unknown one is refused."""
    fits: dict[str, Any] = {
        "Format": "json", "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        "Host": "http://x:1", "server.ip": "127.0.0.1", "servers": "x:1", "abled": True,
        "useJson": True, "Path": "/x", "topic": "x", "Topic": "x", "Ext": ".x",
        "groupId": "g", "instance.id": "i", "serviceId": "s",
    }  # fmt: skip
    for key in VALUE_KEYS:
        found = [value for end, value in fits.items() if key.endswith(end)]
        value = str(found[0] if found else 1000).replace("True", "true")
        value = "50" if key.endswith("Threshold") else value
        loaded(tmp_path, f"{key}: {value}")
