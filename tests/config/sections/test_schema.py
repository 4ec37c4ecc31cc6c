"""The schema is for editors: whatever it says must agree with what loading says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

import gateway
from gateway.config import build_json_schema, loads
from gateway.errors import ConfigError

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


def test_every_option_says_what_it_is():
    found = options(build_json_schema())
    assert [name for name, option in found.items() if not option.get("description")] == []


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
    assert errors({"kafka": {"servers": "localhost"}}) == ["$.kafka.servers"]


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


def read_core_schema(text: str) -> object:
    """The value of a plain scalar by YAML 1.2 10.3.2, as an editor reads it."""
    if re.fullmatch("null|Null|NULL|~", text):
        return None
    if re.fullmatch("true|True|TRUE|false|False|FALSE", text):
        return text.lower() == "true"
    if re.fullmatch("[-+]?[0-9]+", text):
        return int(text)
    if re.fullmatch("0o[0-7]+|0x[0-9a-fA-F]+", text):
        return int(text, 0)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return float(text)
    if re.fullmatch(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", text):
        return float(text.replace(".", ""))
    return text


SCALARS = st.one_of(
    st.sampled_from(
        [".nan", ".NaN", ".inf", "-.INF", "+.inf", ".5", "5.", "1e3", "1e999", "1_0", "0x1f",
         "0o17", "012", "1" * 31, "-" + "9" * 40, "1" * 31 + ".5", "1" * 300, "2024-02-29",
         "20240229", "2024-W09-4", "\uff15", "5s", "1.5h", "5 s", "12:30", "true",
         "FALSE", "null", "~", "yes", "nan", "inf", "gzip", "none", "100/s", "64MiB", "/a", "a b"]
    ),
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.from_regex(r"[-+]?[0-9._]{1,40}([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    st.from_regex(r"[0-9a-zA-Z._+]{1,8}", fullmatch=True),
)  # fmt: skip
OPTIONS = {
    "name": "name: {}",
    "key": "routes: [{{when: [{{path: /a}}], with: {{topic: orders, filters: [{{key: {}}}]}}}}]",
    "prefix": "routes: [{{when: [{{path: /a}}], with: {{topic: orders, filters: "
    "[{{key: {{prefix: {}}}}}]}}}}]",
    "gt": "routes: [{{when: [{{path: /a}}], with: {{topic: orders, filters: "
    "[{{key: {{gt: {}}}}}]}}}}]",
    "compression": "routes: [{{when: [{{path: /a}}], with: {{topic: orders, compression: {}}}}}]",
    "flag": "listen: {{websocket: {{compression: {}}}}}",
}
VALIDATOR = jsonschema.Draft202012Validator(build_json_schema())


@pytest.mark.parametrize("option", OPTIONS)
@given(text=SCALARS)
def test_loading_and_the_schema_agree_about_unquoted_scalars(option: str, text: str):
    """The loader read .nan, .inf and numbers of 31 digits as text, which the schema refused."""
    value = read_core_schema(text)
    if value is None or set(text) <= {"-", "."}:
        return  # an option that is not there; the start of a list or of a document
    kafka = "kafka: {servers: embedded, topics: [{name: orders}]}\n"
    raw = YAML(typ="safe", pure=True).load(kafka + OPTIONS[option].format("MARKER"))
    raw = json.loads(json.dumps(raw), object_hook=lambda each: _replace_marker(each, value))
    is_number_of_json = not isinstance(value, float) or math.isfinite(value)
    try:
        loads(kafka + OPTIONS[option].format(text))
        is_loaded = True
    except ConfigError:
        is_loaded = False
    assert is_loaded == (is_number_of_json and VALIDATOR.is_valid(raw)), (text, errors(raw))


def _replace_marker(section: dict[str, Any], value: object) -> dict[str, Any]:
    def replace(item: object) -> object:
        return (
            [replace(each) for each in item]
            if isinstance(item, list)
            else (value if item == "MARKER" else item)
        )

    return {name: replace(item) for name, item in section.items()}


def test_the_schema_says_what_it_is_of_and_its_examples_are_valid():
    """Editors and catalogs of schemas know one by its id, and people by title and version."""
    schema = build_json_schema()
    assert gateway.__version__ in schema["$id"]
    assert schema["title"] and schema["version"] == gateway.__version__
    for example in schema["examples"]:
        assert errors(example) == []
        loads(json.dumps(example))


@pytest.mark.parametrize(
    ("route", "wrong"),
    [
        ({"path": "/a", "topic": "orders"}, []),
        ({"path": "/a", "topics": ["orders"], "guarded": ["login"], "heartbeat": "5s"}, []),
        ({"path": "/a", "method": "PUT", "capability": "produce", "topic": "orders"}, []),
        ({"path": "/a", "with": {"topic": "orders"}}, []),
        ({"when": [{"path": "/a"}], "topic": "orders"}, []),
        ({"path": "/a", "topic": "orders", "heartbeat": 5}, ["$.routes[0].heartbeat"]),
        ({"path": "/a", "topic": "orders", "heartbaet": "5s"}, ["$.routes[0]"]),
        ({"path": "/a"}, ["$.routes[0]"]),
        ({"topic": "orders"}, ["$.routes[0]"]),
        ({"path": "/a", "topic": "orders", "guarded": [5]}, ["$.routes[0].guarded[0]"]),
        ({"path": "/a", "topic": "orders", "guarded": {}}, ["$.routes[0].guarded"]),
    ],
)
def test_the_schema_knows_routes_in_the_short_form(route: dict[str, Any], wrong: list[str]):
    base = {"kafka": {"servers": "a:1,b:2", "topics": ["orders", {"name": "stock"}]}}
    assert errors({**base, "routes": [route]}) == wrong


@pytest.mark.parametrize(
    "document",
    [
        {"tokens": {"secret": "${env.TOKENS_SECRET}"}},
        {"tokens": {"secret": ["${env.OLD_SECRET}", "${env.TOKENS_SECRET}"]}},
        {"kafka": {"servers": ["${env.SERVER}"], "topics": ["orders"]}},
        {"listen": {"hosts": ["${env.HOST}"]}},
    ],
)
def test_items_of_lists_may_be_substitutions(document: dict[str, Any]):
    """The schema refused them: an editor marked what loads, and what `check --print` writes."""
    base = {"kafka": {"servers": ["a:1"], "topics": ["orders"]}}
    assert errors({**base, **document}) == []
