"""The schema is for editors: whatever it says must agree with what loading says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from gateway.config import schema

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def options(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {f"Settings.{name}": option for name, option in made["properties"].items()}
    for section, definition in made["$defs"].items():
        for name, option in definition.get("properties", {}).items():
            found[f"{section}.{name}"] = option
    return found


def errors(raw: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [error.json_path for error in validator.iter_errors(raw)]


def test_the_schema_is_json_and_a_schema():
    jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(schema())))


def test_every_option_says_what_it_is_and_who_uses_it():
    found = options(schema())
    assert len(found) > 70
    for name, option in found.items():
        assert "or " in option.get("description", ""), f"{name} names no user"
        assert "For " in option["description"] or " for " in option["description"], name


def test_defaults_are_written_as_the_file_writes_them():
    found = options(schema())
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
