"""`gateway check --cluster --front` through real proxies, right ones and wrong ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.proxies import ALL_PROXIES, HaProxy, Nginx, Proxy, running_proxy
from typer.testing import CliRunner

from gateway import cli
from gateway.cli.cluster_check.finding import CheckProgress, FindingState
from gateway.cli.cluster_check.front import FrontAddress, check_front
from gateway.config import load
from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.asyncio(loop_scope="module")
IDLE_S = 6.0


class WrongProxy(NamedTuple):
    """A configuration that somebody might have, and what is to be found."""

    kind: type[Proxy]
    changes: Mapping[str, str]
    found: Mapping[str, str]  # subjects that are not ok, each with a word of its detail


WRONG_PROXIES = {
    "buffers": WrongProxy(
        Nginx,
        {
            "proxy_buffering off;": "proxy_ignore_headers X-Accel-Buffering; proxy_buffering on;",
        },
        {"events at once": "buffers"},
    ),
    "cuts idle streams": WrongProxy(
        Nginx,
        {"proxy_read_timeout 60s": "proxy_read_timeout 4s"},
        {"idle streams": "cuts", "WebSocket": "cuts"},
    ),
    "cuts idle WebSockets": WrongProxy(
        HaProxy, {"timeout tunnel 60s": "timeout tunnel 4s"}, {"WebSocket": "cuts"}
    ),
    "drops headers": WrongProxy(
        HaProxy,
        {
            "    option forwardfor": "    http-request del-header authorization\n"
            "    option forwardfor",
        },
        {"headers": "Authorization"},
    ),
    "compresses again": WrongProxy(
        Nginx,
        {
            "gzip off;": "gzip on; gzip_types text/event-stream; gzip_min_length 1; "
            'gzip_proxied any; proxy_set_header Accept-Encoding "";'
        },
        {"compression": "compresses"},
    ),
    "hides the client's address": WrongProxy(
        HaProxy, {"    option forwardfor\n": ""}, {"client address": "hides"}
    ),
    "believes what clients say of their address": WrongProxy(
        Nginx,
        {"X-Forwarded-For $proxy_add_x_forwarded_for": "X-Forwarded-For $http_x_forwarded_for"},
        {"client address": "hides"},
    ),
    "caps the size of headers": WrongProxy(
        Nginx,
        {"large_client_header_buffers 4 64k;": ""},
        {"long positions in the header": "caps", "long positions in the query": "caps"},
    ),
    "blocks WebSockets": WrongProxy(
        Nginx, {"proxy_set_header Upgrade $http_upgrade;": ""}, {"WebSocket": "blocks"}
    ),
    "rewrites Host": WrongProxy(Nginx, {"Host $http_host": "Host $host"}, {"WebSocket": "Host"}),
    "has HTTP/1.1 only": WrongProxy(HaProxy, {" alpn h2,http/1.1": ""}, {"HTTP/2": "six streams"}),
    "hides the scheme": WrongProxy(
        HaProxy,
        {"    http-request set-header X-Forwarded-Proto https\n": ""},
        {"scheme": "X-Forwarded-Proto"},
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[GatewayProcess]:
    """One for all proxies."""
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", 1)
        config = build_config(kafka.bootstrap, ["orders"], listen={"forwarded": ["127.0.0.1"]})
        async with running_gateway_process(config) as gateway:
            yield gateway


async def find_problems(gateway: GatewayProcess, proxy: Proxy) -> dict[str, str]:
    """The details of the findings that are not ok, by their subjects."""
    address = FrontAddress(proxy.url, proxy.authority.certificate_path, IDLE_S)
    findings = await check_front(address, load(gateway.config_path), CheckProgress())
    return {
        each.subject.removeprefix("front: "): each.detail
        for each in findings
        if each.state is not FindingState.OK
    }


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, id=each.NAME, marks=pytest.mark.needs(each.NAME)) for each in ALL_PROXIES],
)
async def test_nothing_is_wrong_with_the_files_of_the_repository(gateway, tmp_path, kind):
    async with running_proxy(kind, tmp_path / "proxy", gateway.port) as proxy:
        assert await find_problems(gateway, proxy) == {}


@pytest.mark.needs("nginx", "haproxy")
@pytest.mark.parametrize("wrong", WRONG_PROXIES.values(), ids=WRONG_PROXIES)
async def test_a_wrong_configuration_is_named(gateway, tmp_path, wrong):
    async with running_proxy(
        wrong.kind, tmp_path / "proxy", gateway.port, changes=wrong.changes
    ) as proxy:
        problems = await find_problems(gateway, proxy)
        assert problems.keys() == wrong.found.keys(), problems
        for subject, word in wrong.found.items():
            assert word in problems[subject]


async def test_the_options_of_the_proxy_need_the_ones_they_are_for(tmp_path: Path):
    file = tmp_path / "gateway.yaml"
    file.write_text("{}")
    for arguments in (
        ["--front", "https://localhost"],
        ["--cluster", "--front", "localhost:8443"],
        ["--cluster", "--ca", str(file)],
        ["--cluster", "--idle", "5"],
    ):
        result = CliRunner().invoke(cli.app, ["check", str(file), *arguments])
        assert result.exit_code == 2, result.output
