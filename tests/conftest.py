"""What every test may use: fixtures of tests/support, and the marker `needs`."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from support.requirements import require_tools

from gateway.config.sections.variables import COMMAND_VARIABLES, OLD_NAMES

pytest_plugins = [
    "support.brokers",
    "support.topic_gateway",
    "support.reference_stream",
    "support.playwright_page",
    "support.redis",
    "support.secure_kafka",
    "support.tiers",
    "support.worker_groups",
    "support.spark",
]

# By day the same examples each time, so that no change is refused for what another one did; by
# night random ones, ten times as many. On a busy machine an example may take seconds (200 ms are
# allowed by default): no fault of it.
HYPOTHESIS_OPTIONS: Mapping[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile(
    "day", max_examples=50, derandomize=True, database=None, **HYPOTHESIS_OPTIONS
)
settings.register_profile("night", max_examples=1000, print_blob=True, **HYPOTHESIS_OPTIONS)
PROFILE = os.environ.get("GATEWAY_HYPOTHESIS_PROFILE", "day")
settings.load_profile(PROFILE)
if PROFILE == "day":
    # It also draws constants of the modules that are loaded, which differ from worker to worker.
    providers._get_local_constants = providers.Constants


def pytest_configure() -> None:
    """Leave out what the shell has of its own: options for the gateway, a proxy for loopback, and
    that jobs in the background ignore ^C."""
    for name in list(os.environ):
        if name in COMMAND_VARIABLES | OLD_NAMES.keys() or re.fullmatch(r"GATEWAY_.+__.+", name):
            del os.environ[name]
    direct = f"{os.environ.get('NO_PROXY', '')},localhost,127.0.0.1,::1"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = direct.lstrip(",")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """10,000 tests are 1,000,000 objects, which each full collection of garbage would look at."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each client of httpx reads all authorities that certifi knows, for 20 ms of CPU, and tests
    create thousands. No server of a test is vouched for by any."""
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text().partition(end)[0] + end
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifi, "where", lambda: str(file))
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require_tools(*mark.args)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Long values are numbered: some are made in each process (keys, tokens), and all workers have
    to call a test the same."""
    return argname if isinstance(val, str | bytes) and len(val) > 80 else None
