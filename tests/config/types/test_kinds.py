"""What is reported of a section whose kind is not known."""

from __future__ import annotations

import pytest

from gateway.config import loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: embedded, topics: [{name: orders}]}\n"


def list_messages(text: str) -> list[str]:
    """The problems of a configuration, without their places."""
    with pytest.raises(ConfigError) as caught:
        loads(KAFKA + text)
    return [problem.split(": ", 1)[1] for problem in caught.value.problems]


@pytest.mark.parametrize("options", ["", "{}", "text"])
def test_a_method_is_not_refused_before_there_are_options(options: str):
    """An empty `with` was also reported as a method that needs `capability: produce`."""
    (message,) = list_messages(f"routes: [{{when: [{{path: /a, method: POST}}], with: {options}}}]")
    assert message.startswith("routes[0].with: ")


def test_all_problems_of_a_section_of_an_unknown_kind_are_reported():
    """Other problems were reported only once the name of the kind was corrected."""
    options = "{capability: strem, topic: orders, heartbeat: 5, filtrs: [], filters: [{kee: a}]}"
    assert list_messages(f"routes: [{{when: [{{path: /a}}], with: {options}}}]") == [
        "routes[0].with.capability: 'strem' is no kind of route; did you mean 'stream'?",
        "routes[0].with.heartbeat: 5 has no unit; write a number and a unit, such as 5s",
        "unknown key 'filtrs' in routes[0].with; did you mean 'filters'?",
        "unknown key 'kee' in routes[0].with.filters[0]; did you mean 'key'?",
    ]


def test_options_that_only_some_kinds_have_are_no_problem_while_the_kind_is_unknown():
    options = "{capability: x, overrides: {a: b}, replyTo: orders, heartbeat: 5s, topic: orders}"
    (message,) = list_messages(f"routes: [{{when: [{{path: /a}}], with: {options}}}]")
    assert message.startswith("routes[0].with.capability: 'x' is no kind of route")


def test_problems_beside_a_missing_kind_are_reported():
    assert list_messages("guards: {g: {cache: 1x, leewy: 1s}}") == [
        "guards.g: 'type' is missing; add one of jwt, http, x509, inline",
        "guards.g.cache: 'x' is not a unit of duration; use one of ms, s, m, h, d",
        "unknown key 'leewy' in guards.g; did you mean 'leeway'?",
    ]
