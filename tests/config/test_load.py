from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway.config
from gateway.config import Settings, load, loads
from gateway.errors import ConfigError

ORDERS = (Path(__file__).parents[2] / "examples" / "orders.yaml").read_text("utf-8")
PIECES = ["name: ", "kafka:", "\n", "\n  ", "\n    - ", "servers: ", "topics: ", "[a:1]", "{", "}",
          "when: ", "path: ", "/{a}", "with: ", "topic: ", "guards: ", "keys: ", "filters: ",
          "${env.A}", "${params.a}", "${", "'", '"', "x", "5s", "*a", "&a ", "1", "null",
          "[", "]"]  # fmt: skip


def settings_or_problems(text: str) -> None:
    try:
        made = loads(text, name="x.yaml", environ={"A": "a: [b"})
    except ConfigError as error:
        assert error.problems
        assert all(problem.startswith("x.yaml:") for problem in error.problems)
        assert all("; " in problem for problem in error.problems), error.problems
    else:
        assert isinstance(made, Settings)


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_settings_or_a_config_error(text: str):
    settings_or_problems(text)


@given(st.data())
def test_a_damaged_file_is_settings_or_a_config_error(data: st.DataObject):
    """A piece of the example cut out, repeated, or replaced by something else."""
    start = data.draw(st.integers(0, len(ORDERS)))
    end = data.draw(st.integers(start, min(len(ORDERS), start + 80)))
    new = data.draw(st.sampled_from([*PIECES, "", ORDERS[start:end] * 2]) | st.text(max_size=5))
    settings_or_problems(ORDERS[:start] + new + ORDERS[end:])


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["kafka", "servers", "topics", "name", "routes", "when", "path", "with", "filters", "key",
         "guarded", "guards", "jwt0", "keys", "listen", "tls", "sasl", "security", "mechanism",
         "reconnect", "cache", "value", "model", "catalog", "access-control", "allow", "type",
         "transforms", "bootstrap", "telemetry", "metrics", "prometheus", "policy", "kty"]
    ), inner, max_size=6),
    max_leaves=40,
))  # fmt: skip
def test_any_value_in_any_place_is_refused_by_pydantic_and_by_nothing_else(values: object):
    with contextlib.suppress(ValueError):  # ValidationError is one
        Settings.model_validate({"kafka": values, "routes": values, "guards": values})
    with contextlib.suppress(ValueError):
        Settings.model_validate(values)


def test_a_file_is_loaded_with_its_name_in_every_problem(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_bytes("\ufeffkafka: {servers: embedded}\r\nnaem: é\r\n".encode())
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert raised.value.problems == (f"{path}:2:1: unknown key 'naem'; did you mean 'name'?",)


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path):
    for path in (tmp_path / "nowhere.yaml", tmp_path, Path("a\0b")):
        with pytest.raises(ConfigError, match=r":1:1: cannot be read .*; check the path"):
            load(path)


def test_a_config_error_carries_no_values_with_it():
    """A traceback shows the chain of errors: pydantic's would hold the input."""
    with pytest.raises(ConfigError) as raised:
        loads("kafka: {servers: '${env.A}'}\n", environ={"A": "hunter2"})
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_the_public_names_are_all_there():
    for name in gateway.config.__all__:
        assert hasattr(gateway.config, name)


@pytest.mark.parametrize("kind", ["['${env.S}']", "{k: '${env.S}'}", "[[{k: '${env.S}'}]]"])
@pytest.mark.parametrize(
    "text",
    [
        "guards: {g: {type: KIND}}\nroutes: [{when: [{path: /a}], with: {topic: o}}]\n",
        "routes: [{when: [{path: /a}], with: {topic: o, capability: KIND}}]\n",
    ],
)
def test_a_variable_within_a_list_is_shown_as_it_was_written(text: str, kind: str):
    with pytest.raises(ConfigError) as refused:
        loads(text.replace("KIND", kind), environ={"S": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert "${env.S}" in str(refused.value)
