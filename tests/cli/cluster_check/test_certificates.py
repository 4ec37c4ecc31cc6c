"""Certificates that are expired, soon expire, belong to another key, or are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.certificates import CertificateAuthority

from gateway.cli.cluster_check.finding import FindingState
from gateway.cli.cluster_check.servers import check_authorities, check_key_pair

NOW = datetime.now(UTC)


@pytest.fixture
def house(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path, valid_days=365)


def test_a_pair_that_fits_is_told_until_when(house: CertificateAuthority):
    pem = house.issue_certificate("web", valid_days=90)
    found = check_key_pair("listen.tls.certificate", pem, pem, None, NOW)
    assert found.state is FindingState.OK
    # It was issued after NOW, perhaps on the next day.
    days = {each + timedelta(days=90) for each in (NOW, datetime.now(UTC))}
    assert any(f"{day:%Y-%m-%d}" in found.detail for day in days)


@pytest.mark.parametrize(
    ("after", "state", "piece"),
    [
        (timedelta(days=80), FindingState.WARNING, "CN=web expires on"),
        (timedelta(days=91), FindingState.FAILS, "CN=web expired on"),
        (timedelta(days=-2), FindingState.FAILS, "valid from"),
    ],
)
def test_its_time_is_told(house, after, state, piece):
    pem = house.issue_certificate("web", valid_days=90)
    found = check_key_pair("listen.tls.certificate", pem, pem, None, NOW + after)
    assert found.state is state and piece in found.detail


def test_the_key_of_another_does_not_fit(house: CertificateAuthority):
    mine, other = house.issue_certificate("mine"), house.issue_certificate("other")
    found = check_key_pair("listen.tls.certificate", mine, other, None, NOW)
    assert found.state is FindingState.FAILS and "the key of another" in found.detail


@pytest.mark.parametrize(
    ("password", "state"),
    [("right", FindingState.WARNING), ("wrong", FindingState.FAILS), (None, FindingState.FAILS)],
)
def test_a_key_with_a_password_is_opened_by_it_and_nobody_is_asked_for_one(
    house, tmp_path, password, state
):
    pem = house.issue_certificate("web")
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    shut = tmp_path / "shut.key"
    shut.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"right"),
        )
    )
    assert check_key_pair("kafka.security.tls.certificate", pem, shut, password, NOW).state is state


def test_files_that_hold_none_are_told(house: CertificateAuthority, tmp_path: Path):
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing\n")
    missing = tmp_path / "missing.pem"
    for file in (nothing, missing):
        assert (
            check_key_pair("listen.tls.certificate", file, file, None, NOW).state
            is FindingState.FAILS
        )
        assert check_authorities("listen.tls.ca", file, NOW).state is FindingState.FAILS


def test_authorities_are_good_while_one_of_them_is(house: CertificateAuthority, tmp_path: Path):
    old = CertificateAuthority(tmp_path, "old authority", valid_days=2)
    both = tmp_path / "both.pem"
    both.write_bytes(house.certificate_path.read_bytes() + old.certificate_path.read_bytes())
    later = NOW + timedelta(days=30)
    assert (
        check_authorities("listen.tls.ca", house.certificate_path, later).state is FindingState.OK
    )
    found = check_authorities("listen.tls.ca", both, later)
    assert found.state is FindingState.WARNING and "CN=old authority" in found.detail
    assert (
        check_authorities("listen.tls.ca", old.certificate_path, later).state is FindingState.FAILS
    )
    assert (
        check_authorities("listen.tls.ca", old.certificate_path, NOW).state is FindingState.WARNING
    ), "soon"
