"""The schema is for editors: whatever it says must agree with what loading says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from gateway.config import build_json_schema

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def options(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {f"Settings.{name}": option for name, option in made["properties"].items()}
    for section, definition in made["$defs"].items():
        for name, option in definition.get("properties", {}).items():
            found[f"{section}.{name}"] = option
    return found


def errors(raw: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(build_json_schema())
    return [error.json_path for error in validator.iter_errors(raw)]


def test_the_schema_is_json_and_a_schema():
    jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(build_json_schema())))


def test_every_option_says_what_it_is_and_who_uses_it():
    found = options(build_json_schema())
    assert len(found) > 70
    for name, option in found.items():
        assert "or " in option.get("description", ""), f"{name} names no user"
        assert "For " in option["description"] or " for " in option["description"], name


def test_defaults_are_written_as_the_file_writes_them():
    found = options(build_json_schema())
    assert found["Topic.partitionReadyTimeout"]["default"] == "5s"
    assert found["Cache.bytes"]["default"] == "64MiB"
    assert found["Settings.memory"]["default"] == "1GiB"
    assert found["Listen.port"]["default"] == 8080


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_agree_with_the_schema(path: Path):
    assert errors(YAML(typ="safe", pure=True).load(path.read_text("utf-8"))) == []


def test_what_loading_refuses_the_schema_marks_too():
    base: dict[str, Any] = {"kafka": {"servers": ["a:1"], "topics": [{"name": "orders"}]}}
    assert errors(base) == []
    assert errors({}) == ["$"]
    assert errors({**base, "kafak": 1}) == ["$"]
    assert errors({**base, "memory": "5"}) == ["$.memory"]
    assert errors({**base, "memory": "${env.MEMORY:1GiB}"}) == []
    assert errors({**base, "listen": {"port": "${env.PORT}"}}) == []
    assert errors({**base, "listen": {"port": "80"}}) == ["$.listen.port"]
    assert errors({"kafka": {"servers": "localhost:9092"}}) == ["$.kafka.servers"]


def test_conditions_and_choices_are_in_the_schema():
    def of(**options: Any) -> list[str]:
        kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}]}
        route = {"when": [{"path": "/e/{t}"}], "with": {"topic": "${params.t}", **options}}
        return errors({"kafka": kafka, "routes": [route]})

    at = "$.routes[0].with"
    assert (
        of(filters=[{"key": 7, "value": {"/a": {"in": ["a", 1, True], "gte": 1, "lt": "2"}}}]) == []
    )
    assert of(filters=[{"headers": {"h": {"exists": "${env.X}", "prefix": "${params.t}"}}}]) == []
    assert of(filters=[{"key": ["a"]}]) == [f"{at}.filters[0].key"]
    assert of(filters=[{"key": {"prefx": "a"}}]) == [f"{at}.filters[0].key"]
    assert of(filters=[{"value": {"/a": {"gt": True}}}]) == [f"{at}.filters[0].value['/a']"]
    assert of(allow=["pay-*"], clientFilters=True, fields=["/a"], clientFields="${env.X}") == []
    assert of(allow=["pay-?"]) == [f"{at}.allow[0]"]
    assert of(fields=["a"]) == [f"{at}.fields[0]"]


def test_options_of_another_capability_or_kind_are_marked_at_their_section():
    def of(*, guard: dict[str, Any] | None = None, **options: Any) -> list[str]:
        kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}]}
        guards = {} if guard is None else {"door": guard}
        route = {"when": [{"path": "/e"}], "with": {"topic": "orders", **options}}
        return errors({"kafka": kafka, "routes": [route], "guards": guards})

    assert of(capability="produce", key="a") == of(heartbeat="1s") == of() == []
    assert of(capability="produce", heartbeat="1s") == of(key="a") == ["$.routes[0].with"]
    assert of(capability="fetsch") == ["$.routes[0].with.capability"]
    assert of(guard={"type": "http", "url": "http://a"}) == []
    assert of(guard={"type": "http", "url": 7}) == ["$.guards.door.url"]
    assert of(guard={"type": "http", "users": {}}) == ["$.guards.door", "$.guards.door"]
    assert of(guard={"url": "http://a"}) == ["$.guards.door"]
