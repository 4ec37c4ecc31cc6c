from __future__ import annotations

import pytest

from gateway.config import loads

KAFKA = "kafka: {servers: [a:1], topics: [{name: a}, {name: b}]%s}\n"


def test_a_sound_configuration_has_no_warnings():
    assert loads(KAFKA % "").warnings == ()


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
            KAFKA % "" + "guards: {g: {type: jwt, keys: [{kty: oct, k: s}]}}\n",
            "guards.g.keys[0].k: secret",
        ),
        (
            KAFKA % "" + "listen: {access-control: {allow: {origins: ['https://a']}}}\n",
            "access-control cross-origin",
        ),
    ],
)
def test_what_works_but_perhaps_not_as_meant_is_told(text: str, words: str):
    (warning,) = loads(text, environ={"P": "p"}).warnings
    assert all(word in warning for word in words.split())
    assert ";" in warning
