"""Where operators come in: never by accident, and never whoever reaches the port."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from gateway.config import Admin, Settings, build_json_schema, dumps, loads
from gateway.config.sections.reload import apply_reload
from gateway.errors import ConfigError

BASE = """
kafka: {servers: [a:9092]}
guards:
  login: {type: jwt, keys: "http://k"}
  people: {type: inline, users: {ada: {token: t, roles: [operate]}}}
"""


def settings(admin: str) -> Settings:
    return loads(f"{BASE}admin: {admin}\n", environ={"HOST": "0.0.0.0"})


def refusal(admin: str) -> str:
    with pytest.raises(ConfigError) as refused:
        settings(admin)
    return str(refused.value)


def test_there_is_none_unless_it_is_asked_for_and_then_for_this_machine():
    assert loads(BASE).admin is None
    assert settings("{}").admin == Admin(host="127.0.0.1", port=9901, guarded={})


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "'::'", "10.0.0.1", "gateway.internal", "'${env.HOST}'"]
)
def test_where_others_reach_it_somebody_has_to_ask_who_they_are(host: str):
    said = refusal(f"{{host: {host}}}")
    assert "lets other machines in, and nobody is asked who they are; add admin.guarded" in said
    assert refusal(f"{{host: {host}, guarded: {{}}}}") == said
    made = settings(f"{{host: {host}, guarded: {{login: [operate]}}}}").admin
    assert made is not None and made.guarded == {"login": ("operate",)}


@pytest.mark.parametrize("host", ["127.0.0.1", "'::1'", "'[::1]'", "localhost", "127.8.9.1"])
def test_on_this_machine_it_need_not_be_guarded(host: str):
    assert settings(f"{{host: {host}, port: 0}}").admin is not None


@pytest.mark.parametrize(
    ("admin", "said"),
    [
        ("{guarded: {logn: []}}", "login"),
        ("{guarded: {people: [oprate]}}", "no user of 'people' has the role 'oprate'"),
        ("{host: 0.0.0.0, guarded: {people: []}}", "guard 'people' is for development"),
        ("{guarded: [login], records: [people]}", "operators are not asked by 'people'"),
        ("{port: 70000}", "70000 is out of range"),
        ("{hots: a}", "host"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(admin: str, said: str):
    assert re.search(re.escape(said), refusal(admin))


def test_it_is_written_as_it_is_read_and_the_schema_takes_it():
    text = "{host: 10.0.0.1, port: 7000, guarded: {login: [operate]}}"
    made = settings(text)
    assert loads(dumps(made), environ={"GUARDS_PEOPLE_USERS_ADA_TOKEN": "t"}) == made
    validator = jsonschema.Draft202012Validator(build_json_schema())
    good: dict[str, Any] = {"kafka": {"servers": ["a:1"]}, "admin": {"guarded": {"a": ["b"]}}}
    validator.validate(good)
    assert not validator.is_valid({**good, "admin": {"port": "x"}})


def test_a_reload_takes_over_its_guards_and_never_without_its_address():
    running = settings("{host: 10.0.0.1, guarded: {login: [operate]}}")
    stricter = apply_reload(
        running, settings("{host: 10.0.0.1, guarded: {login: [operate, more]}}")
    )
    assert stricter.kept == ()
    assert stricter.settings.admin is not None
    assert stricter.settings.admin.guarded == {"login": ("operate", "more")}
    for other in ("{}", "{guarded: {}}", "null"):
        kept = apply_reload(running, settings(other))
        assert kept.settings.admin == running.admin and kept.kept == ("admin",)
    assert apply_reload(settings("null"), running).kept == ("admin",)
