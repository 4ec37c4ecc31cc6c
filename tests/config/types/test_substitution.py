from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import loads
from gateway.config.types.substitution import Expression, safe_repr, substitute
from gateway.errors import ConfigError

HERE = Path()


def test_a_variable_its_default_and_none():
    environ = {"A": "1", "E": ""}
    assert substitute("x${env.A}y", environ=environ, base=HERE) == "x1y"
    assert substitute("${env.B:http://b:80}", environ=environ, base=HERE) == "http://b:80"
    assert substitute("${env.E:full}", environ=environ, base=HERE) == ""
    with pytest.raises(ValueError, match="'B' is not set"):
        substitute("${env.B}", environ=environ, base=HERE)


@given(st.text())
def test_what_is_put_in_is_never_put_in_again(value: str):
    for nasty in (value, "${env.A}" + value, "${params.x}" + value):
        made = substitute("<${env.A}>", environ={"A": nasty}, base=HERE)
        assert made == f"<{nasty}>"
        assert made.is_resolved


def test_templates_are_left_for_later():
    made = substitute("${env.A}-${params.x}", environ={"A": "a"}, base=HERE)
    assert made.parts == ("a-", Expression("params.x"))
    assert not made.is_resolved


def test_a_file_is_read_from_the_folder_of_the_configuration(tmp_path: Path):
    (tmp_path / "secret").write_text("pass word\n")
    config = tmp_path / "a.yaml"
    text = "name: ${file:secret}\nkafka: {servers: embedded}\n"
    assert loads(text, name=str(config)).name == "pass word"


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"\xff\xff")
    (tmp_path / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe")
    wanted = {"binary": "UTF-8", "large": "1MiB", "pipe": "exist", "none": "exist", "a\0b": "exist"}
    for name, hint in wanted.items():
        with pytest.raises(ValueError, match=hint):
            substitute(f"${{file:{name}}}", environ={}, base=tmp_path)


def test_an_option_whose_substitution_is_empty_is_as_if_not_written():
    text = "kafka: {servers: embedded, rack: '${env.RACK:}', clientId: '${env.ID}'}\n"
    settings = loads(text, environ={"ID": ""})
    assert settings.kafka.rack is None
    assert settings.kafka.client_id == "gateway-gateway"
    with pytest.raises(ConfigError, match="1:1: 'servers' is missing"):
        loads("kafka: {servers: '${env.RACK:}'}\n", environ={})


@pytest.mark.parametrize(
    ("guard", "empty"),
    [
        ("{type: inline, users: {ada: {token: '${env.E}'}}}", r"'token' is empty: \${env.E}"),
        ("{type: jwt, issuer: '${env.NONE:}'}", r"'issuer' is empty: \${env.NONE:}"),
        ("{type: jwt, keys: [{kty: oct, k: '${env.E}'}]}", r"'k' is empty: \${env.E}"),
    ],
)
def test_what_is_missing_because_a_variable_is_empty_names_the_variable(guard: str, empty: str):
    """It only said that the option is missing, which stands there."""
    with pytest.raises(ConfigError, match=rf"; add .*\({empty}\)$"):
        loads(f"kafka: {{servers: [a:1]}}\nguards: {{g: {guard}}}\n", environ={"E": ""})


def test_a_variable_is_a_number_where_a_number_is_asked_for_and_text_where_text_is():
    text = "name: ${env.N}\nlisten: {port: '${env.N}'}\nkafka: {servers: '${env.S}'}\n"
    settings = loads(text, environ={"N": "8081", "S": "a:1, b:2"})
    assert settings.name == "8081"
    assert settings.listen.port == 8081
    assert settings.kafka.servers == ("a:1", "b:2")


def test_a_variable_may_be_a_choice_a_flag_a_duration_or_a_size():
    text = (
        "memory: ${env.M}\n"
        "kafka:\n"
        "  servers: ['a:${env.P}']\n"
        "  security: {tls: {verify: '${env.V}'}}\n"
        "  topics: [{name: '${env.T}', isolation: '${env.I}', clockSkew: '${env.C}'}]\n"
    )
    environ = {"M": "2GiB", "P": "1", "V": "false", "T": "t", "I": "read_uncommitted", "C": "2s"}
    settings = loads(text, environ=environ)
    (topic,) = settings.kafka.topics
    assert (settings.memory, settings.kafka.servers) == (2**31, ("a:1",))
    assert (topic.name, topic.isolation, topic.clock_skew) == ("t", "read_uncommitted", 2.0)
    assert settings.kafka.security.tls is not None and not settings.kafka.security.tls.verify
    assert type(topic.name) is str and type(topic.isolation) is str


def test_a_shown_value_is_what_was_written_and_short():
    made = substitute("${env.A}", environ={"A": "hunter2"}, base=HERE)
    assert safe_repr(made) == "'${env.A}'"
    assert safe_repr("http://u:hunter2@host/") == "'http://u:***@host/'"
    assert len(safe_repr("x" * 1000)) == 60
