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


@pytest.mark.parametrize(
    ("options", "own_problem"),
    [
        ("kafka: {topics: [orders]}", "'servers' is missing in kafka"),
        ("kafak: {servers: [a:1]}", "'kafka' is missing"),
        (f"{KAFKA}pipelines: {{jobs: [{{name: j, type: sessions}}]}}", "'from' is missing"),
        (f"{KAFKA}listen: {{tls: {{}}}}", "'certificate' is missing in listen.tls"),
        (f"{KAFKA}catalogs: {{r: {{type: schema-registry, url: r}}}}", "catalogs.r.url: 'r'"),
        (f"{KAFKA}guards: {{h: {{type: nix}}}}", "guards.h.type: 'nix'"),
    ],
)
def test_what_a_section_lacks_hides_no_problem_of_another(options: str, own_problem: str):
    """A section that lacked two options took the one around it along."""
    problems = list_problems(
        f"{options}\nadmin: {{guarded: [g]}}\nmemory: a\n"
        "sidecar: {catalog: x, consumer: {}}\n"
        "routes: [{path: /healthz, topic: orders, guarded: {}}]\n"
    )
    assert any(own_problem in problem for problem in problems)
    for expected in (
        "admin.guarded: unknown guard 'g'",
        "sidecar.catalog: unknown catalog 'x'",
        "routes[0].guarded: is empty, so everybody may use this route",
    ):
        assert any(problem.endswith(expected) for problem in problems), problems


def test_an_item_of_another_number_in_the_file_is_not_named():
    """The problem follows once the items before it are valid."""
    kafka = "kafka: {servers: [a:1], topics: [%s, orders, orders]}\n"
    assert len(list_problems(kafka % "'no topic'")) == 1
    assert "as topics[1]" in list_problems(kafka % "payments")[0]


def test_metrics_of_an_invalid_path_take_no_other_path():
    problems = list_problems(
        "kafka: {servers: [a:1], topics: [orders]}\n"
        "telemetry: {metrics: {prometheus: 3}}\n"
        "routes: [{path: /metrics, topic: orders}]\n"
    )
    assert [problem.split(": ")[1] for problem in problems] == ["telemetry.metrics.prometheus"]
