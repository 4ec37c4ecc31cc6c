"""What a reload takes over must agree with what stays until a restart."""

from __future__ import annotations

import shutil
from pathlib import Path

import certifi
import pytest

from gateway.config import Settings, loads
from gateway.config.sections.reload import apply_reload
from gateway.errors import ConfigError

BASE = """
kafka: {servers: [a:1], topics: [{name: orders}]}
"""
INLINE = "guards: {g: {type: inline, users: {ada: {password: p}}, exposed: false}}\n"
TLS = "listen: {tls: {certificate: pem, key: pem}}\n"
TRUST = "listen: {tls: {certificate: pem, key: pem, trust: pem}}\n"


def settings(text: str, folder: Path = Path()) -> Settings:
    return loads(BASE + text, name=str(folder / "gateway.yaml"))


@pytest.mark.parametrize(
    ("running", "loaded", "problem"),
    [
        (
            TLS,
            f"{TRUST}guards: {{m: {{type: x509}}}}\n",
            "guards.m: guard 'm' sees no certificate",
        ),
        (
            "",
            "listen: {forwarded: [10.0.0.1]}\nguards: {m: {type: x509, forwarded: true}}\n",
            "guards.m.forwarded: anybody could send",
        ),
        ("listen: {host: 0.0.0.0}\n", INLINE, "guards.g: guard 'g' is for development"),
        (
            f"{INLINE}sidecar: {{producer: {{}}, guarded: {{g: []}}}}\n",
            "",
            "sidecar.guarded.g: unknown guard 'g'",
        ),
        (
            f"{INLINE}admin: {{port: 1, guarded: {{g: []}}}}\n",
            "admin: {port: 2}\n",
            "admin.guarded.g: unknown guard 'g'",
        ),
        (
            "sidecar: {producer: {}}\n",
            "routes: [{when: [{path: /producers/a}], with: {topic: orders}}]\n",
            "routes[0].when[0].path: path '/producers/a' is the sidecar's own",
        ),
    ],
    ids=["trust", "forwarded", "host", "sidecar-guard", "admin-guard", "sidecar-path"],
)
def test_a_valid_file_is_refused_if_it_disagrees_with_what_stays(
    running, loaded, problem, tmp_path
):
    """The two were combined unchecked: guards without certificates, or a KeyError for a guard."""
    shutil.copy(certifi.where(), tmp_path / "pem")
    with pytest.raises(ConfigError) as caught:
        apply_reload(settings(running, tmp_path), settings(loaded, tmp_path))
    (line,) = caught.value.problems
    assert line.startswith(problem)
    assert "until a restart as before: " in line


def test_options_that_stay_do_not_hinder_what_agrees_with_them():
    reloaded = apply_reload(
        settings(f"{INLINE}sidecar: {{producer: {{}}, guarded: {{g: []}}}}\n"),
        settings(f"{INLINE}listen: {{port: 1}}\n"),
    )
    assert set(reloaded.kept) == {"sidecar", "listen.port"}


SCRAM = "mechanism: scram-sha-512, username: u"


@pytest.mark.parametrize(
    ("running", "loaded", "kept"),
    [
        (f"sasl: {{{SCRAM}, password: a}}", f"sasl: {{{SCRAM}, password: b}}", ()),
        ("tls: {verify: true}", "tls: {verify: false}", ()),
        ("tls: {}", f"tls: {{}}, sasl: {{{SCRAM}, password: b}}", ("kafka.security",)),
        (f"sasl: {{{SCRAM}, password: a}}", "tls: {}", ("kafka.security",)),
    ],
    ids=["password", "verify", "sasl-added", "tls-for-sasl"],
)
def test_a_login_is_taken_over_if_the_brokers_listener_stays_the_same(running, loaded, kept):
    """A password that was rotated needed a restart."""
    text = "kafka: {{servers: [a:1], topics: [orders], security: {{{}}}}}"
    before, after = loads(text.format(running)), loads(text.format(loaded))
    reloaded = apply_reload(before, after)
    assert reloaded.kept == kept
    expected = before if kept else after
    assert reloaded.settings.clusters[""].security == expected.clusters[""].security
