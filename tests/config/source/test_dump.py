from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Settings, dumps, loads
from gateway.errors import ConfigError

VISIBLE = st.characters(exclude_categories=("Cc", "Cs"))
TEXT = st.text(VISIBLE, min_size=1, max_size=12).filter(lambda text: text.strip())
TRICKY = (
    ["null", "no", "1", "1e3", "~", "<<", "- a", "a: b", "#", "'", '"', "\\", "${env.X}", "${$}",
     "${params.a}", "$", " a ", "é", "a\u2028b", "\U0001f600", "\ufeff", "%", "@", "true", "0x1f",
     "yes", "1_0", "a\uffffb", "x" * 500]
)  # fmt: skip
WORDS = TEXT | st.sampled_from(TRICKY)
TOPICS = st.lists(st.from_regex(r"[a-z0-9_-]{1,8}", fullmatch=True), min_size=1, unique=True)
DURATION = st.integers(100_000, 60_000_000).map(lambda micros: f"{micros / 1000:.3f}ms")
SIZE = st.integers(1, 2**40).map(lambda count: f"{count}B")
MODEL = st.fixed_dictionaries({}, optional={"model": st.sampled_from(["json", "string", "int"])})
TEMPLATE = st.lists(
    TEXT.map(lambda text: text.replace("$", "${$}")) | st.just("${params.p}"), min_size=1
).map("".join)


def optional(**options: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=options)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Settings in the YAML's words, whatever is allowed together."""
    names = draw(TOPICS)
    topic = optional(
        defaultOffset=st.sampled_from(["live", "historical"]),
        partitionReadyTimeout=DURATION,
        offsetOutOfRange=st.sampled_from(["earliest", "latest", "fail"]),
        reconnect=st.just({}) | st.just({"initial": "1ms", "max": "10s"}),
        cache=optional(bytes=SIZE, age=DURATION),
        key=MODEL,
        value=MODEL,
        transforms=st.lists(st.fixed_dictionaries({"extract-headers": st.dictionaries(
            WORDS, st.just("${message.value.a}"), min_size=1)})),
    )  # fmt: skip
    bound = st.integers(-9, 9) | st.just(0.5) | st.just("${params.p}") | st.just("1e99")
    condition = optional(
        **{"in": st.lists(TEMPLATE | st.booleans() | bound, min_size=1, max_size=2)},
        prefix=TEMPLATE, exists=st.just(True), gt=bound, gte=bound, lt=bound, lte=bound,
    ).filter(bool) | st.just({"exists": False})  # fmt: skip
    wanted = TEMPLATE | st.integers() | st.booleans() | condition
    pointers = TEXT.map(lambda t: "/" + t.replace("~", "~0"))
    filters = st.lists(
        st.fixed_dictionaries(
            {"key": wanted},
            optional={
                "headers": st.dictionaries(WORDS, wanted, max_size=2),
                "value": st.dictionaries(pointers, wanted, max_size=2),
            },
        ),
        max_size=2,
    )
    options = optional(
        filters=filters,
        clientFilters=st.booleans(),
        fields=st.lists(pointers, min_size=1, max_size=3),
        clientFields=st.booleans(),
        format=st.sampled_from(["value", "envelope", "cloudevents"]),
        heartbeat=DURATION,
        history=st.sampled_from(["none", "all"]) | DURATION,
        maxLifetime=st.just("1h"),
        maxRate=st.sampled_from(["1/h", "90/m", "100/s"]),
    )
    route = st.builds(
        lambda number, source, more: {
            "when": [{"path": f"/r{number}/{{p}}"}],
            "guarded": {"jwt0": ["a b"]},
            "with": {**source, **more},
        },
        st.integers(0, 10**6),
        st.sampled_from(
            [
                {"topic": names[0]},
                {"topics": names},
                {"topics": ["${params.p}", names[0]], "allow": ["pay-*", "*", "__own"]},
            ]
        ),
        options,
    )
    return {
        "name": draw(WORDS),
        "kafka": {
            "servers": draw(st.just("embedded") | st.just(["a:1", "[::1]:9092"])),
            "topics": [{"name": name, **draw(topic)} for name in names],
            "bootstrap": draw(st.just([]) | st.just(names)),
            **draw(optional(
                rack=WORDS,
                requestTimeout=DURATION,
                reconnect=st.just({"initial": "10ms", "max": "2s"}),
                security=st.just({"tls": {}, "sasl": {
                    "mechanism": "plain", "username": "u", "password": "hunter2"}}),
            )),
        },
        "routes": draw(st.lists(route, max_size=3, unique_by=lambda r: r["when"][0]["path"])),
        "guards": {"jwt0": {"type": "jwt", "keys": "http://k", "attributes": draw(
            st.dictionaries(WORDS, WORDS, max_size=2))}},
        **draw(optional(
            memory=st.just("2GiB"),
            admin=st.just({}) | st.just({"port": 0, "guarded": {"jwt0": ["a b"]}}),
            telemetry=st.just({"metrics": {"prometheus": None}}),
            listen=optional(
                port=st.integers(0, 65535),
                websocket=st.booleans().map(lambda on: {"compression": on}),
            ),
        )),
    }  # fmt: skip


@given(configurations())
def test_dumped_settings_load_as_equal_ones_and_hold_no_secret(raw: dict[str, Any]):
    settings = Settings.model_validate(raw)
    text = dumps(settings)
    assert "hunter2" not in text
    assert loads(text, environ={"KAFKA_SECURITY_SASL_PASSWORD": "hunter2"}) == settings
    assert dumps(loads(text, environ={"KAFKA_SECURITY_SASL_PASSWORD": "hunter2"})) == text


@pytest.mark.parametrize("text", TRICKY)
def test_a_text_that_looks_like_something_else_is_dumped_as_text(text: str):
    raw = {
        "name": text,
        "kafka": {"servers": "embedded", "rack": text},
        "guards": {text: {"type": "jwt", "keys": "http://k", "attributes": {text: text}}},
    }
    settings = Settings.model_validate(raw)
    loaded = loads(dumps(settings), environ={"X": "not this"})
    assert loaded == settings
    assert loaded.name == text


def secured(password: str) -> str:
    return (
        "kafka: {servers: embedded, security: {sasl: {mechanism: plain, username: u,"
        f" password: '{password}'}}}}}}\n"
    )


def test_a_secret_is_dumped_as_the_file_refers_to_it():
    text = dumps(loads(secured("${env.PW}"), environ={"PW": "hunter2"}))
    assert 'password: "${env.PW}"' in text


@pytest.mark.parametrize("written", ["hunter2", "${env.NONE:hunter2}", "hunter${env.TWO}"])
def test_a_secret_in_the_file_is_dumped_as_a_variable_to_set(written: str):
    settings = loads(secured(written), environ={"TWO": "2"})
    text = dumps(settings)
    assert "hunter" not in text
    with pytest.raises(ConfigError, match="'KAFKA_SECURITY_SASL_PASSWORD' is not set"):
        loads(text, environ={})
    assert loads(text, environ={"KAFKA_SECURITY_SASL_PASSWORD": "hunter2"}) == settings


def test_the_effective_configuration_is_dumped():
    text = dumps(loads("kafka: {servers: [a:1], topics: [{name: orders}]}\n"))
    for line in ("      partitionReadyTimeout: 5s", "        bytes: 64MiB", "memory: 1GiB"):
        assert line in text.splitlines()


REGISTRY = "kafka: {servers: embedded}\ncatalogs: {r: {type: schema-registry, url: %s}}\n"


@pytest.mark.parametrize("url", ["http://a", "[http://a]", "[http://a, http://b]"])
def test_a_catalog_of_one_or_several_urls_loads_again(url: str):
    """A single URL is dumped as one text, which was paired with the elements of the tuple."""
    settings = loads(REGISTRY % url)
    assert loads(dumps(settings)) == settings


@pytest.mark.parametrize("headers", ["[]", "[cookie]"])
def test_an_empty_list_that_is_not_the_default_is_dumped(headers: str):
    """An empty list was left out, also where the default is none: cookies were forwarded then."""
    guard = f"{{type: http, url: http://a, forward: {{headers: {headers}, query: [t]}}}}"
    settings = loads(f"kafka: {{servers: embedded}}\nguards: {{g: {guard}}}\n")
    assert loads(dumps(settings)) == settings


def test_fields_for_some_roles_are_dumped_without_a_warning(recwarn: pytest.WarningsRecorder):
    """A field with guards had no serializer, and `check --print` printed pydantic's warnings."""
    fields = "[/a, {field: /b, guarded: {g: [admin]}}]"
    settings = loads(
        "kafka: {servers: embedded, topics: [{name: orders}]}\n"
        "guards: {g: {type: x509, forwarded: true}}\n"
        "listen: {forwarded: [10.0.0.1]}\n"
        "routes:\n"
        "- when: [{path: /a}]\n"
        "  guarded: {g: []}\n"
        f"  with: {{topic: orders, fields: {fields}}}\n"
    )
    assert loads(dumps(settings)) == settings
    assert not recwarn.list
