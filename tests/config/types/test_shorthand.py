"""Short forms and old spellings mean the same as the long form, and problems keep their place."""

from __future__ import annotations

import shutil

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Route, Settings, Topic, dumps, loads
from gateway.config.types.forms import expand
from gateway.errors import ConfigError

LONG = """\
kafka:
  servers: [a:9092, b:9092]
  topics: [{name: orders}]
guards: {login: {type: jwt, keys: http://k}}
routes:
  - when: [{path: /events/orders}]
    guarded: {login: []}
    with: {topic: orders}
"""

SHORT = """\
kafka: {servers: "a:9092, b:9092", topics: [orders]}
guards: {login: {type: jwt, keys: http://k}}
routes: [{path: /events/orders, topic: orders, guarded: [login]}]
"""


def load_problems(text: str, **options: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loads(text, name="g.yaml", **options)
    return list(raised.value.problems)


def load_with_warnings(text: str) -> tuple[Settings, list[str]]:
    warnings: list[str] = []
    return loads(text, name="g.yaml", warn=warnings.append), warnings


def test_the_short_forms_are_equal_to_the_long_ones():
    settings, warnings = load_with_warnings(SHORT)
    assert settings == loads(LONG)
    assert warnings == []
    assert loads(dumps(settings)) == settings
    assert "when:" in dumps(settings) and "name: orders" in dumps(settings)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"path": "/a", "topic": "t"}, {"when": [{"path": "/a"}], "with": {"topic": "t"}}),
        (
            {"path": "/a", "method": "PUT", "capability": "produce", "topic": "t", "key": "k"},
            {
                "when": [{"path": "/a", "method": "PUT"}],
                "with": {"capability": "produce", "topic": "t", "key": "k"},
            },
        ),
        (
            {"when": [{"path": "/a"}, {"path": "/b"}], "topics": ["t", "u"], "format": "envelope"},
            {
                "when": [{"path": "/a"}, {"path": "/b"}],
                "with": {"topics": ["t", "u"], "format": "envelope"},
            },
        ),
        (
            {"path": "/a", "with": {"topic": "t"}},
            {"when": [{"path": "/a"}], "with": {"topic": "t"}},
        ),
    ],
)
def test_a_route_may_have_the_options_of_when_and_with_itself(short, long):
    assert Route.model_validate(short) == Route.model_validate(long)


def test_a_section_in_the_short_form_is_also_read_alone():
    assert Topic.model_validate("orders") == Topic(name="orders")
    assert Route.model_validate({"path": "/", "topic": "t", "guarded": ["g"]}).guarded == {"g": ()}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "kafka: {servers: a:1, topics: [orders, 'no topic']}",
            "g.yaml:1:40: kafka.topics[1]: 'no topic' is no topic name",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\n"
            "routes:\n  - path: /events/orders\n    topic: order\n",
            "g.yaml:4:12: routes[0].topic: unknown topic 'order'; did you mean 'orders'?",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\n"
            "routes:\n  - path: events\n    topic: orders\n",
            "g.yaml:3:11: routes[0].path: ",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\nguards: {login: {type: jwt, keys: http://k}}\n"
            "routes: [{path: /a, topic: orders, guarded: [logni]}]\n",
            "g.yaml:3:46: routes[0].guarded: unknown guard 'logni'; did you mean 'login'?",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\n"
            "routes: [{path: /a, topic: orders, heartbaet: 1s}]\n",
            "g.yaml:2:36: unknown key 'heartbaet' in routes[0]; did you mean 'heartbeat'?",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\n"
            "routes: [{when: [{path: /a}], path: /b, with: {topic: orders}, topic: orders}]\n",
            "g.yaml:2:31: routes[0]: 'path' belongs in `when`",
        ),
        (
            "kafka: {servers: a:1, topics: [orders]}\n"
            "routes: [{path: /b, with: {topic: orders, guarded: [a]}}]\n",
            "g.yaml:2:43: routes[0].with: 'guarded' belongs beside `with`",
        ),
        (
            "kafka: {servers: a:1}\nlisten: {drain-timeout: 5}\n",
            "g.yaml:2:25: listen.drain-timeout",
        ),
    ],
)
def test_a_problem_is_reported_in_the_words_of_the_file(text: str, problem: str):
    assert any(line.startswith(problem) for line in load_problems(text)), load_problems(text)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("listen: {drain-timeout: 3s}", "'drain-timeout' in listen is an old spelling"),
        ("listen: {accessControl: {maxAge: 5m}}", "'maxAge' in listen.accessControl"),
        (
            "sidecar: {ksqldb: {trust: FILE}}",
            "'trust' in sidecar.ksqldb is an old spelling; write 'ca'",
        ),
        (
            "listen: {tls: {certificate: FILE, key: FILE, trust: FILE}}",
            "'trust' in listen.tls is an old spelling; write 'ca'",
        ),
    ],
)
def test_an_old_spelling_is_read_and_reported(tmp_path, text: str, warning: str):
    """`trust` and `ca` named the same thing, and case differed from option to option."""
    file = tmp_path / "ca.pem"
    shutil.copy(certifi.where(), file)
    _, warnings = load_with_warnings(
        f"{text.replace('FILE', str(file))}\nkafka: {{servers: a:1}}\n"
    )
    assert any(line.partition(": ")[2].startswith(warning) for line in warnings), warnings


def test_an_old_spelling_is_logged_once(caplog):
    text = "kafka: {servers: a:1}\nlisten: {drain-timeout: 7s}\n"
    for _ in range(2):
        assert loads(text, name="logged-once.yaml").listen.drain_timeout == 7
    assert len([line for line in caplog.messages if "drain-timeout" in line]) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["kafka", "topics", "routes", "path", "with", "when", "guarded", "topic",
                         "name", "listen", "max-age", "accessControl", "tls", "trust", "ca"]),
        inner, max_size=5),
    max_leaves=25,
)  # fmt: skip


@given(values)
def test_whatever_was_expanded_is_not_expanded_again(raw: object):
    once = expand(Settings, raw).values
    again = expand(Settings, once)
    assert again.values == once
    assert again.moves == {} and again.old_spellings == {}
