"""The checks between sections run on what is valid, and their problems have the file's places."""

from __future__ import annotations

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: [localhost], topics: ['no topic', orders]}\n"


def list_problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, name="g.yaml", environ={})
    return [problem.split("; ")[0] for problem in raised.value.problems]


def test_a_problem_behind_an_item_that_was_left_out_has_its_own_place():
    problems = list_problems(
        f"{KAFKA}routes:\n"
        "  - {path: /a, topic: [orders]}\n"
        "  - {path: /b, topic: orders, filters: [{key: '${params.x}'}]}\n"
    )
    assert problems[-1] == (
        "g.yaml:4:47: routes[1].filters[0].key: no parameter 'x' in this route's path"
    )
    assert len(problems) == 4


def test_what_a_guard_lacks_is_not_blamed_on_routes_while_its_options_are_invalid():
    problems = list_problems(
        "kafka: {servers: [a:1], topics: [orders]}\n"
        "guards: {g: {type: http, url: 'http://a', attributes: region}}\n"
        "routes:\n"
        "  - {path: /a, topic: orders, guarded: [g],\n"
        "     filters: [{key: \"${guarded['g'].attributes.region}\"}]}\n"
    )
    assert [problem.split(": ")[1] for problem in problems] == ["guards.g.attributes"]


def test_a_configuration_of_which_nothing_is_left_has_only_its_own_problems():
    assert len(list_problems("kafka: {}\nroutes: [{path: /a, topic: a}]\n")) == 1
