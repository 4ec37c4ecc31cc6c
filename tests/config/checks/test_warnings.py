from __future__ import annotations

import pytest

from gateway.config import iter_warnings, loads

KAFKA = "kafka: {servers: [a:1], topics: [{name: a}, {name: b}]%s}\n"


def test_a_sound_configuration_has_no_warnings():
    assert list(iter_warnings(loads(KAFKA % ""))) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory: 100MiB\n" + KAFKA % "", "memory 100MiB 128MiB"),
        (KAFKA % ", security: {tls: {verify: false}}", "tls.verify"),
        (
            KAFKA % ", security: {sasl: {mechanism: plain, username: u, password: '${env.P}'}}",
            "unencrypted kafka.security.tls",
        ),
        ("kafka: {servers: embedded, security: {tls: {}}}\n", "embedded remove"),
        (
            KAFKA % ", security: {tls: {}, sasl: {mechanism: plain, username: u, password: p}}",
            "kafka.security.sasl.password: ${env.NAME}",
        ),
        (
            KAFKA % "" + f"guards: {{g: {{type: jwt, keys: [{{kty: oct, k: {'ab' * 22}}}]}}}}\n",
            "guards.g.keys[0].k: secret",
        ),
        (
            KAFKA % "" + "guards: {g: {type: jwt, keys: [{kty: oct, k: '${env.K}'}]}}\n",
            "guards.g.keys[0]: 24 bits 256",
        ),
        (
            KAFKA % "" + "guards: {g: {type: jwt, keys: 'https://a/jwks'}}\n",
            "guards.g: other services audience",
        ),
        (
            KAFKA % "" + "guards: {g: {type: jwt, keys: 'http://a/jwks', audience: a}}\n",
            "guards.g.keys: https",
        ),
        (
            KAFKA % "" + "guards: {g: {type: http, url: 'http://app/who'}}\n",
            "guards.g.url: https",
        ),
        (
            KAFKA % "" + "guards: {g: {type: inline, users: {a: {password: p}}}}\n",
            "guards.g.users.a.password: secret",
        ),
        (
            KAFKA % "" + "listen: {access-control: {allow: {origins: ['https://a']}}}\n",
            "access-control cross-origin",
        ),
    ],
)
def test_what_works_but_perhaps_not_as_meant_is_told(text: str, words: str):
    (warning,) = iter_warnings(loads(text, environ={"P": "p", "K": "YWJj"}))
    assert all(word in warning for word in words.split())
    assert ";" in warning
