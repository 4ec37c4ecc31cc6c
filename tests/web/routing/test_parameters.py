"""Parameters of the query: what a route reads, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from support.gateways import build_config

from gateway.config import Settings
from gateway.errors import RequestError
from gateway.web.routing.paths import Parameters, list_parameters

GUARDS = {
    "jwt": {
        "type": "jwt",
        "issuer": "https://login.example",
        "audience": "kafka",
        "keys": "https://login.example/keys",
        "credentials": {"query": {"access_token": "{credentials}"}},
    },
    "app": {
        "type": "http",
        "url": "https://app.example/session",
        "forward": {"query": ["session"]},
    },
}
STREAM = {
    "when": [{"path": "/events/a"}],
    "guarded": {"jwt": [], "app": []},
    "with": {"topic": "a", "filters": [{"key": "${query.customer}"}]},
}
PRODUCE = {
    "when": [{"path": "/orders", "method": "POST"}],
    "with": {
        "capability": "produce",
        "topic": "a",
        "key": "${query.key}",
        "overrides": {"tenant": "${query.tenant}"},
    },
}


def load(*routes: dict[str, Any]) -> Settings:
    config = build_config(["localhost:9092"], ["a"], list(routes), guards=GUARDS)
    return Settings.model_validate(config)


def test_a_stream_reads_its_own_parameters_those_of_its_templates_and_of_its_guards():
    settings = load(STREAM)
    names = list_parameters(settings.routes[0], settings)
    own = {"from", "until", "lastEventId", "filter", "fields", "wait", "positions"}
    assert names == own | {"credit", "dictionary", "customer", "access_token", "session"}


def test_a_route_that_writes_reads_those_of_its_key_and_headers():
    settings = load(PRODUCE)
    names = list_parameters(settings.routes[0], settings)
    assert names == {"filter", "fields", "key", "tenant"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("untill", "until"),
        ("FROM", "from"),
        ("last_event_id", "lastEventId"),
        ("costumer", "customer"),
    ],
)
def test_a_misspelt_parameter_is_refused_with_what_may_be_meant(name: str, meant: str):
    """`?untill=latest` was ignored, and streamed for ever."""
    settings = load(STREAM)
    with pytest.raises(RequestError) as caught:
        Parameters(settings).check(settings.routes[0], [("from", "live"), (name, "x")])
    assert caught.value.status == 400
    assert name in str(caught.value) and f"'{meant}'" in str(caught.value)


@pytest.mark.parametrize("name", ["_", "t", "_cb", "token", "Signature", ""])
def test_what_a_cache_or_a_proxy_in_between_reads_is_ignored(name: str):
    settings = load(STREAM)
    Parameters(settings).check(settings.routes[0], [(name, "1700000000")])


def test_an_application_that_checks_access_may_read_any_parameter():
    settings = load(STREAM)
    Parameters(settings, is_open=True).check(settings.routes[0], [("ticket", "x")])


def test_a_long_name_is_cut():
    settings = load(STREAM)
    with pytest.raises(RequestError) as caught:
        Parameters(settings).check(settings.routes[0], [("x" * 100_000, "")])
    assert len(str(caught.value)) < 500
