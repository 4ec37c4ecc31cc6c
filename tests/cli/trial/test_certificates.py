"""Certificates that are expired, soon expire, belong to another key, or are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.certificates import Authority

from gateway.cli.trial.certificates import pair, trust
from gateway.cli.trial.finding import State

NOW = datetime.now(UTC)


@pytest.fixture
def house(tmp_path: Path) -> Authority:
    return Authority(tmp_path, days=365)


def test_a_pair_that_fits_is_told_until_when(house: Authority):
    pem = house.signed("web", days=90)
    found = pair("listen.tls.certificate", pem, pem, None, NOW)
    assert found.state is State.OK
    assert f"{NOW + timedelta(days=90):%Y-%m-%d}" in found.detail


@pytest.mark.parametrize(
    ("after", "state", "piece"),
    [
        (timedelta(days=80), State.WARNING, "CN=web expires on"),
        (timedelta(days=91), State.FAILS, "CN=web is expired since"),
        (timedelta(days=-2), State.FAILS, "valid from"),
    ],
)
def test_its_time_is_told(house: Authority, after: timedelta, state: State, piece: str):
    pem = house.signed("web", days=90)
    found = pair("listen.tls.certificate", pem, pem, None, NOW + after)
    assert found.state is state and piece in found.detail


def test_the_key_of_another_does_not_fit(house: Authority):
    mine, other = house.signed("mine"), house.signed("other")
    found = pair("listen.tls.certificate", mine, other, None, NOW)
    assert found.state is State.FAILS and "the key of another" in found.detail


@pytest.mark.parametrize(("password", "state"), [("right", State.WARNING), ("wrong", State.FAILS),
                                                 (None, State.FAILS)])  # fmt: skip
def test_a_key_with_a_password_is_opened_by_it_and_nobody_is_asked_for_one(
    house: Authority, tmp_path: Path, password: str | None, state: State
):
    pem = house.signed("web")
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    shut = tmp_path / "shut.key"
    shut.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"right"),
        )
    )
    assert pair("kafka.security.tls.certificate", pem, shut, password, NOW).state is state


def test_files_that_hold_none_are_told(house: Authority, tmp_path: Path):
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing\n")
    missing = tmp_path / "missing.pem"
    for file in (nothing, missing):
        assert pair("listen.tls.certificate", file, file, None, NOW).state is State.FAILS
        assert trust("listen.tls.trust", file, NOW).state is State.FAILS


def test_authorities_are_good_while_one_of_them_is(house: Authority, tmp_path: Path):
    old = Authority(tmp_path, "old authority", days=2)
    both = tmp_path / "both.pem"
    both.write_bytes(house.path.read_bytes() + old.path.read_bytes())
    later = NOW + timedelta(days=30)
    assert trust("listen.tls.trust", house.path, later).state is State.OK
    found = trust("listen.tls.trust", both, later)
    assert found.state is State.WARNING and "CN=old authority" in found.detail
    assert trust("listen.tls.trust", old.path, later).state is State.FAILS
    assert trust("listen.tls.trust", old.path, NOW).state is State.WARNING, "soon"
