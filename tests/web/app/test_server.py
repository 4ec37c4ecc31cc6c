from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from support.certificates import CertificateAuthority

from gateway.config import Settings
from gateway.errors import GatewayError
from gateway.web.app.server import Server, serve
from gateway.web.routing.routes import jitter_lifetime


def test_it_is_not_ready_any_more_from_the_moment_it_is_told_to_end():
    """Load balancers that look hear of it before connections are refused."""
    server = Server(uvicorn.Config(app=cast("Any", None), log_config=None))
    told: list[str] = []
    server.hubs = cast("Any", SimpleNamespace(stop_accepting=lambda: told.append("refuse")))
    server.handle_exit(signal.SIGTERM, None)
    assert told == ["refuse"] and server.should_exit


def test_streams_that_began_together_do_not_all_end_together():
    lives = [jitter_lifetime(100.0) for _ in range(200)]
    assert all(life is not None and 90 <= life <= 110 for life in lives)
    assert len({round(life or 0) for life in lives}) > 10
    assert jitter_lifetime(None) is None


@pytest.mark.parametrize("workers", [1, 2])
def test_it_does_not_listen_with_a_certificate_of_another_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
):
    authority = CertificateAuthority(tmp_path)
    one, other = (authority.issue_certificate(name) for name in ("one", "other"))
    tls = {"certificate": str(one), "key": str(other)}
    settings = {"listen": {"port": 0, "workers": workers, "tls": tls}, "kafka": {"servers": "a:1"}}
    with pytest.raises(GatewayError, match=r"listen\.tls: .*one\.pem, .*other\.pem"):
        serve(Settings.model_validate(settings))
    assert "listening on" not in capsys.readouterr().out
