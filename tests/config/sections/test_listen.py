from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from gateway.config import Rate, Settings, build_json_schema, dumps, loads
from gateway.errors import ConfigError

KAFKA = "kafka: {servers: [localhost:9092]}\n"


def listen(text: str, **environ: str) -> Any:
    return loads(f"{KAFKA}listen: {text}\n", environ=environ).listen


def test_one_process_takes_all_and_believes_no_proxy_unless_told():
    made = listen("{}")
    assert (made.workers, made.forwarded, made.drain_timeout) == (1, False, 5.0)
    assert (made.limits.connections, made.limits.per_address) == (None, None)


@pytest.mark.parametrize(
    ("written", "environ", "meant"),
    [
        ("true", {}, True),
        ("false", {}, False),
        ("[10.0.0.0/8, 192.0.2.1, '2001:db8::/32']", {},
         ("10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32")),
        ('["${env.ONE}"]', {"ONE": "192.0.2.1"}, ("192.0.2.1/32",)),
        ('"${env.ALL}"', {"ALL": "192.0.2.1, 10.0.0.0/8"}, ("192.0.2.1/32", "10.0.0.0/8")),
        ('"${env.ALL}"', {"ALL": "true"}, True),
    ],
)  # fmt: skip
def test_proxies_are_all_none_or_some(written: str, environ: dict[str, str], meant: Any):
    made = loads(f"{KAFKA}listen: {{forwarded: {written}}}\n", environ=environ)
    assert made.listen.forwarded == meant
    assert loads(dumps(made), environ={}) == made


def test_all_of_it_is_written_back_as_it_is_read():
    limits = "{connections: 5, perAddress: 2, perIdentity: 3, rate: 90/m, burst: 7}"
    text = f"{{workers: 3, limits: {limits}, drainTimeout: 1500ms}}"
    made = loads(f"{KAFKA}listen: {text}\n")
    assert (made.listen.workers, made.listen.drain_timeout) == (3, 1.5)
    assert (made.listen.limits.connections, made.listen.limits.per_address) == (5, 2)
    assert (made.listen.limits.per_identity, made.listen.limits.burst) == (3, 7)
    assert made.listen.limits.rate == Rate(90, 60.0)
    assert "rate: 90/m" in dumps(made).replace('"', "")
    assert loads(dumps(made)) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{workers: 0}", "workers 0 1 to 256"),
        ("{workers: 1.5}", "workers 1.5 whole number"),
        ("{worker: 2}", "unknown 'worker' 'workers'?"),
        ("{limits: {connections: 0}}", "limits.connections 0 out of range"),
        ("{limits: {per_address: 3}}", "unknown 'per_address' 'perAddress'?"),
        ("{limits: {perIdentity: 0}}", "limits.perIdentity 0 out of range"),
        ("{limits: {rate: 20}}", "limits.rate 20 unit 20/s"),
        ("{limits: {rate: 20/sec}}", "limits.rate '20/sec' mean '20/s'?"),
        ("{limits: {rate: 0/s}}", "limits.rate '0/s' out of range 1/s 10000000/s"),
        ("{limits: {rate: 20/d}}", "limits.rate '20/d' rate s, m, h"),
        ("{limits: {rate: fast}}", "limits.rate 'fast' not a rate 20/s"),
        ("{limits: {burst: 20}}", "limits 'burst' needs 'rate'"),
        ("{limits: 5}", "limits options 5"),
        ("{drainTimeout: 5}", "drainTimeout 5 unit"),
        ("{drainTimeout: 2h}", "2h out of range 100ms 1h"),
        ("{forwarded: 10.0.0.1}", "forwarded '10.0.0.1' [10.0.0.0/8]"),
        ("{forwarded: []}", "forwarded list of proxies"),
        ("{forwarded: {a: 1}}", "forwarded list of proxies"),
        ("{forwarded: [10.0.0.0/8, proxy]}", "forwarded[1] 'proxy' address or network"),
        ("{forwarded: [10.0.0.1/8]}", "forwarded[0] '10.0.0.1/8' address or network"),
        ("{forwarded: [10]}", "forwarded[0] text 10 quotes"),
        ("{hosts: ['shop.example:80']}", "listen.hosts[0] 'shop.example:80' without port"),
        ("{hosts: ['http://shop.example']}", "listen.hosts[0] no host"),
        ("{hosts: ['*.shop.example']}", "listen.hosts[0] no host"),
        ("{host: ['*']}", "listen.host"),
    ],
)
def test_what_is_wrong_is_told(text: str, words: str):
    with pytest.raises(ConfigError) as told:
        listen(text)
    (problem,) = told.value.problems
    assert problem.startswith("<string>:2:")
    for word in words.split():
        assert word in problem, problem


def test_brackets_of_an_address_are_those_of_urls():
    """It was taken as a name, which cannot be bound."""
    assert listen("{host: '[::1]'}").host == "::1"


def test_editors_are_told_the_same():
    def errors(section: Any) -> int:
        raw = {"kafka": {"servers": ["a:1"]}, "listen": section}
        return len(list(jsonschema.Draft202012Validator(build_json_schema()).iter_errors(raw)))

    good: list[Any] = [
        {"workers": 3, "limits": {"connections": 1, "perAddress": "${env.X}"}},
        {"forwarded": True}, {"forwarded": ["10.0.0.0/8"]}, {"forwarded": "${env.PROXIES}"},
        {"drainTimeout": "500ms"}, {"hosts": ["shop.example", "*"]},
        {"limits": {"rate": "20/s", "burst": 40, "perIdentity": 5}},
    ]  # fmt: skip
    bad: list[Any] = [
        {"workers": "3"}, {"limits": {"connection": 1}}, {"forwarded": "10.0.0.1"},
        {"hosts": "shop.example"}, {"forwarded": []}, {"forwarded": [1]}, {"drainTimeout": 5},
        {"limits": {"rate": 20}},
    ]  # fmt: skip
    assert [errors(section) for section in good] == [0] * len(good)
    assert all(errors(section) for section in bad)


def test_settings_can_be_handed_to_another_process():
    """Secrets, templates and conditions too: that is how workers get theirs."""
    import pickle

    made = loads(
        "kafka:\n  servers: [a:1]\n  topics: [{name: orders}]\n  security:\n"
        '    sasl: {mechanism: plain, username: u, password: "${env.PW}"}\n'
        "routes:\n- when: [{path: '/e/{c}'}]\n  with:\n    topic: orders\n"
        '    filters: [{key: "${params.c}", value: {/a: {gte: 3}}}]\n',
        environ={"PW": "secret"},
    )
    copy: Settings = pickle.loads(pickle.dumps(made))
    assert copy == made and dumps(copy) == dumps(made)
    assert copy.kafka.security.sasl is not None
    assert copy.kafka.security.sasl.password.get_secret_value() == "secret"
