"""The section `tokens`."""

from __future__ import annotations

import pytest

from gateway.config import dumps, loads
from gateway.config.sections.reload import apply_reload
from gateway.errors import ConfigError

BASE = "kafka: {servers: ['localhost:9092'], topics: [{name: orders}]}\n"
LONG, OTHER = "a" * 32, "b" * 40


def secrets(text: str) -> tuple[str, ...]:
    return loads(BASE + text, environ={"S": LONG}).tokens.secrets


def test_there_is_no_secret_unless_one_is_given():
    assert secrets("") == ()
    assert loads(BASE).tokens.resume == 3600


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (f"tokens: {{secret: {LONG}}}", (LONG,)),
        ("tokens: {secret: '${env.S}'}", (LONG,)),
        (f"tokens: {{secret: [{OTHER}, '${{env.S}}']}}", (OTHER, LONG)),
    ],
    ids=["a text", "of the environment", "a list"],
)
def test_a_secret_is_a_text_or_a_list_of_which_the_first_signs(written: str, read: tuple[str, ...]):
    assert secrets(written) == read


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tokens:\n  secret: short", ":3:11: tokens.secret: has fewer than 32 characters"),
        (f"tokens:\n  secret: [{LONG}, x]", ":3:46: tokens.secret[1]: has fewer than 32"),
        ("tokens:\n  secret: []", ":3:11: tokens.secret: is empty; add at least one"),
        ("tokens:\n  resume: 5", ":3:11: tokens.resume: 5 has no unit"),
        ("tokens:\n  resume: 0s", ":3:11: tokens.resume: 0s is out of range"),
        ("tokens:\n  secrets: x", ":3:3: unknown key 'secrets'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(written: str, said: str):
    with pytest.raises(ConfigError) as refused:
        loads(BASE + written)
    assert said in str(refused.value)
    assert "short" not in str(refused.value)


def test_it_is_dumped_without_its_secrets():
    settings = loads(BASE + f"tokens: {{secret: [{LONG}, {OTHER}], resume: 2h}}")
    text = dumps(settings)
    assert LONG not in text and OTHER not in text
    again = loads(text, environ={"TOKENS_SECRET_0": LONG, "TOKENS_SECRET_1": OTHER})
    assert again.tokens == settings.tokens


def test_another_secret_needs_a_restart():
    """Streams that run would go on to sign with the one before."""
    running, written = loads(BASE), loads(BASE + f"tokens: {{secret: {LONG}}}")
    settings, kept = apply_reload(running, written)
    assert (settings.tokens, kept) == (running.tokens, ("tokens",))
