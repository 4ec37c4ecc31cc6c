"""What a client is shown in a handshake, once the files have changed."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from support.certificates import CertificateAuthority
from support.tasks import running_task
from support.waiting import wait_until

from gateway.config import ListenTls
from gateway.errors import GatewayError
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.http.certificate import TlsContext, read_validity


@pytest.fixture
def ours(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path, "theirs")


def build_settings(certificate: Path, key: Path | None = None, **options: object) -> ListenTls:
    return ListenTls.model_validate(
        {"certificate": str(certificate), "key": str(key or certificate), **options}
    )


def get_shown_subject(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = "localhost"
) -> str:
    """The subject that a client sees. Raises SSLError where the handshake fails."""
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = server.wrap_bio(to_server, to_client, server_side=True)
    there = client.wrap_bio(to_client, to_server, server_hostname=name)
    left = [there, here]
    for _ in range(10):
        for side in list(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not left
    there.write(b"x")
    here.read(1)  # of TLS 1.3 the client's certificate is checked only now
    found = there.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).subject.rfc4514_string()


def replace_file(source: Path, target: Path) -> Path:
    """As certbot and others do: another file in its place."""
    shutil.copy(source, f"{target}.new")
    return Path(f"{target}.new").replace(target)


@pytest.mark.parametrize("name", ["localhost", None])
def test_new_handshakes_get_what_is_in_the_files_by_now(ours, tmp_path, name):
    path = replace_file(ours.issue_certificate("old"), tmp_path / "server.pem")
    tls = TlsContext(build_settings(path))
    assert get_shown_subject(tls.context, ours.create_client_context(), name) == "CN=old"
    for subject in ("new", "newer"):
        replace_file(ours.issue_certificate(subject, valid_days=30), path)
        assert get_shown_subject(tls.context, ours.create_client_context(), name) != f"CN={subject}"
        assert tls.reload()
        assert get_shown_subject(tls.context, ours.create_client_context(), name) == f"CN={subject}"
        assert tls.expires_at == read_validity(path)[1]


def test_what_cannot_be_used_is_refused_and_the_one_before_stays(ours, tmp_path, caplog):
    path, key = (
        replace_file(ours.issue_certificate("old"), tmp_path / "a.pem"),
        tmp_path / "key.pem",
    )
    replace_file(path, key)
    tls = TlsContext(build_settings(path, key))
    before = tls.expires_at
    whole = ours.issue_certificate("new").read_bytes()
    locked = encrypt_key(whole)
    for broken in (b"", b"nonsense", whole[: len(whole) // 2], whole, locked):
        caplog.clear()
        path.write_bytes(broken)
        if broken is locked:
            key.write_bytes(locked)
        assert not tls.reload()
        (line,) = caplog.records
        assert line.levelno == logging.ERROR and str(path) in line.getMessage()
        assert (
            get_shown_subject(tls.context, ours.create_client_context()) == "CN=old"
            and tls.expires_at == before
        )
    key.unlink()
    assert not tls.reload()
    path.write_bytes(whole)
    key.write_bytes(whole)
    assert tls.reload()
    assert get_shown_subject(tls.context, ours.create_client_context()) == "CN=new"


def encrypt_key(pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(pem, None)
    end = pem.index(b"-----BEGIN CERTIFICATE")
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    ) + pem[end:]  # fmt: skip


def test_a_gateway_does_not_start_with_what_cannot_be_used(ours, theirs):
    one, other = ours.issue_certificate("one"), theirs.issue_certificate("other")
    with pytest.raises(GatewayError, match=r"listen\.tls: .*one\.pem, .*other\.pem cannot be used"):
        TlsContext(build_settings(one, other))


def test_whom_it_trusts_is_read_anew_too(ours, theirs, tmp_path):
    trust = replace_file(ours.certificate_path, tmp_path / "trust.pem")
    of = build_settings(ours.issue_certificate("server"), ca=str(trust), mutual="required")
    tls = TlsContext(of)
    ada, eve = (
        ours.create_client_context(ours.issue_certificate("ada")),
        ours.create_client_context(theirs.issue_certificate("eve")),
    )
    assert get_shown_subject(tls.context, ada) == "CN=server"
    with pytest.raises(ssl.SSLError):
        get_shown_subject(tls.context, eve)
    replace_file(theirs.certificate_path, trust)
    assert tls.reload()
    assert get_shown_subject(tls.context, eve) == "CN=server"
    with pytest.raises(ssl.SSLError):
        get_shown_subject(tls.context, ada)
    nobody = ours.create_client_context()
    with pytest.raises(ssl.SSLError):
        get_shown_subject(tls.context, nobody)
    assert tls.reload(of.model_copy(update={"mutual": "requested"}))
    assert get_shown_subject(tls.context, nobody) == "CN=server"
    with pytest.raises(ssl.SSLError):
        get_shown_subject(tls.context, ada)


class ImpatientTlsContext(TlsContext):
    CHECK_INTERVAL_S = 0.01


@pytest.mark.parametrize("how", ["written", "replaced", "linked"])
async def test_it_sees_by_itself_that_a_file_has_changed(ours, tmp_path, caplog, how):
    old, new = ours.issue_certificate("old"), ours.issue_certificate("new")
    path = tmp_path / "server.pem"
    if how == "linked":  # as Kubernetes has its secrets
        path.symlink_to(old)
    else:
        replace_file(old, path)
    tls = ImpatientTlsContext(build_settings(path))
    async with running_task(tls.watch()):
        if how == "written":
            path.write_bytes(b"half of it")
            await wait_until(lambda: "the certificate is not renewed" in caplog.text)
            assert get_shown_subject(tls.context, ours.create_client_context()) == "CN=old"
            path.write_bytes(new.read_bytes())
        elif how == "replaced":
            replace_file(new, path)
        else:
            os.symlink(new, tmp_path / "next")
            (tmp_path / "next").replace(path)
        await wait_until(
            lambda: get_shown_subject(tls.context, ours.create_client_context()) == "CN=new"
        )


def test_its_expiry_is_a_figure(ours: CertificateAuthority):
    tls = TlsContext(build_settings(ours.issue_certificate("server", valid_days=7)))
    figures = MetricSamples()
    tls.collect_metrics(figures)
    assert list(figures[catalog.CERTIFICATE_EXPIRY_TIMESTAMP_SECONDS].values()) == [tls.expires_at]


@pytest.mark.parametrize("days, what", [(-1, "any more"), (3, "yet")])
def test_one_that_is_not_valid_now_never_replaces_one_that_is(ours, tmp_path, caplog, days, what):
    """It was taken with a warning, and every handshake failed from then on."""
    path = replace_file(ours.issue_certificate("old"), tmp_path / "server.pem")
    tls = TlsContext(build_settings(path))
    replace_file(
        ours.issue_certificate("new", valid_days=days, starts_in_days=2 if days > 0 else None), path
    )
    assert not tls.reload()
    assert f"is not valid {what}; write one that is valid now" in caplog.text
    assert get_shown_subject(tls.context, ours.create_client_context()) == "CN=old"


def test_one_that_is_over_takes_the_place_of_one_that_is_over(ours, tmp_path, caplog):
    path = replace_file(ours.issue_certificate("old", valid_days=-2), tmp_path / "server.pem")
    tls = TlsContext(build_settings(path))
    replace_file(ours.issue_certificate("new", valid_days=-1), path)
    assert tls.reload()
    assert [line.levelname for line in caplog.records] == ["WARNING"]
