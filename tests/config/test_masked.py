"""Fields that some clients are shown, and which of these lists cannot mean what they say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import loads
from gateway.errors import ConfigError, RequestError
from gateway.web.access import Grant, Granted
from gateway.web.routing.views import TemplateValues, build_route_view

ROLES = ("support", "admin")
BASE = """
kafka: {servers: [a:9092], topics: [{name: orders}]}
guards: {g: {type: jwt, keys: "http://k"}}
routes:
  - when: [{path: /a}]
    guarded: {g: []}
    with: {topic: orders, fields: %s}
"""

Entry = tuple[str, frozenset[str] | None]


def written(fields: Sequence[Entry]) -> str:
    each = [
        f"'{pointer}'"
        if roles is None
        else f"{{field: '{pointer}', guarded: {{g: [{', '.join(sorted(roles))}]}}}}"
        for pointer, roles in fields
    ]
    return BASE % f"[{', '.join(each)}]"


@pytest.mark.parametrize(
    "fields",
    [
        "[/id, {field: /customer, guarded: {g: [support]}}, /customer/name]",
        "[/id, {field: /a/b, guarded: {g: [support]}}, {field: /a, guarded: {g: [admin]}}]",
        "[/cust, {field: /customer, guarded: {g: []}}]",
        "[/items/1, {field: /items/10, guarded: {g: []}}]",
        "[{field: /a, guarded: {g: [support]}}, {field: /a, guarded: {g: [admin]}}]",
    ],
)
def test_what_means_what_it_says_is_taken(fields: str):
    assert loads(BASE % fields).routes[0].with_.fields


pointers = st.sampled_from(["/a", "/a/b", "/a/b/0", "/a/0", "/ab", "/b", "/b/c"])
entries = st.tuples(
    pointers, st.none() | st.frozensets(st.sampled_from(ROLES), min_size=1, max_size=2)
)


@given(st.lists(entries, min_size=1, max_size=4))
def test_whoever_lacks_the_roles_of_a_field_is_not_shown_it_by_a_list_that_is_taken(fields):
    """What a field asks for counts for somebody, or the list is refused: a client without those
    roles was shown it as a part of another field, and nothing said so."""
    try:
        route = loads(written(fields)).routes[0]
    except ConfigError:
        return
    for pointer, roles in fields:
        if roles is None:
            continue
        seen: list[Any] = []
        for have in (frozenset[str](), {"support"}, {"admin"}, set(ROLES)):
            if not roles <= have:
                granted = Granted([Grant("g", "ada", frozenset(have))])
                try:
                    view = build_route_view(
                        route, TemplateValues({}, {}, granted), known_topics=["orders"]
                    )
                except RequestError:
                    seen.append(False)
                    continue
                covered = [f for f in view.fields if pointer == f or pointer.startswith(f + "/")]
                seen.append(bool(covered))
        assert not all(seen), (fields, pointer)


def test_a_list_that_is_refused_says_where():
    with pytest.raises(ConfigError) as refused:
        loads(written([("/a/b", frozenset({"admin"})), ("/a", None)]))
    assert re.search(r"7:\d+: routes\[0\].with.fields\[0\].field: '/a/b'", str(refused.value))
