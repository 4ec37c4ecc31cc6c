"""The sidecar agrees with clusters, catalogs, guards, routes and workers, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: [a:1], topics: [{name: t}]}"
TWO = "kafka: {one: {servers: [a:1]}, two: {servers: [b:1]}}"
GOOD = f"{KAFKA}\nsidecar: {{producer: {{}}, topics: {{t: {{keyFormat: 2, valueFormat: avro}}}}}}"


def test_a_section_is_on_where_it_is_written_and_formats_have_numbers():
    made = loads(GOOD).sidecar
    assert made is not None and made.producer is not None
    assert made.consumer is None and made.health.enabled
    assert (made.get_key_format("t", "string"), made.get_value_format("t", "string")) == (
        "json",
        "avro",
    )
    assert made.get_key_format("other", "string") == "string"
    assert loads(KAFKA).sidecar is None


def route(path: str) -> str:
    return f"routes: [{{when: [{{path: '{path}'}}], with: {{topic: t}}}}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{KAFKA}\nlisten: {{workers: 2}}\nsidecar: {{consumer: {{}}}}", "listen.workers: 1"),
        (
            f"{KAFKA}\nlisten: {{workers: 2}}\nsidecar: {{admin: {{chaos: true}}}}",
            "may reach another; set listen.workers: 1",
        ),
        (f"{GOOD}\n{route('/producers/{x}')}", "path '/producers/{x}' is the sidecar's own"),
        (f"{GOOD}\n{route('/docs')}", "path '/docs' is the sidecar's own"),
        (f"{TWO}\nsidecar: {{}}", "there are several clusters; add kafka: one or kafka: two"),
        (f"{TWO}\nsidecar: {{kafka: oen}}", "unknown cluster 'oen'; did you mean 'one'?"),
        (f"{KAFKA}\nsidecar: {{kafka: one}}", "there is one; remove it"),
        (f"{KAFKA}\nsidecar: {{catalog: c}}", "unknown catalog 'c'; add it to catalogs"),
        (f"{KAFKA}\nsidecar: {{guarded: {{g: []}}}}", "guard"),
        (f"{KAFKA}\nsidecar: {{prodcuer: {{}}}}", "did you mean 'producer'?"),
        (f"{KAFKA}\nsidecar: {{producer: {{keyFormat: jsn}}}}", "'jsn' is no format; use one of"),
        (f"{KAFKA}\nsidecar: {{producer: {{keyFormat: 6}}}}", "6 is no format"),
        (f"{KAFKA}\nsidecar: {{reactive: {{groups: {{group: g}}}}}}", "either topics or pattern"),
    ],
)
def test_what_does_not_fit_is_told(text: str, said: str):
    with pytest.raises(ConfigError) as refused:
        loads(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "more", [route("/producers/{x}"), f"sidecar: {{admin: {{}}}}\n{route('/producers')}"]
)
def test_paths_of_parts_that_are_off_are_free(more: Any):
    assert loads(f"{KAFKA}\n{more}").routes
