"""The console of a running gateway in a browser, for tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from support.admin_api import ADMIN_SECTION, open_admin_api
from support.gateways import GatewayProcess, GatewayThread, build_config, running_gateway
from support.playwright_page import open_page
from support.workers import running_workers

from gateway.kafka.embedded import EmbeddedKafka

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

USERS = {"ada": {"token": "token-of-ada"}, "eve": {"token": "token-of-eve"}}
GUARDED = {"guards": {"users": {"type": "inline", "users": USERS}}}


def config_of(kafka: EmbeddedKafka, **sections: Any) -> dict[str, Any]:
    """The topics `orders` and `stock`, read from the start, with a console for everybody here."""
    return build_config(
        kafka.bootstrap,
        ["orders", "stock"],
        kafka={"bootstrap": ["orders", "stock"]},
        admin={**ADMIN_SECTION, "records": {}},
        **sections,
    )


def guarded_config_of(kafka: EmbeddedKafka, **admin: Any) -> dict[str, Any]:
    """A guarded route `/kept`, and a console with these options of `admin`."""
    route = {"when": [{"path": "/kept"}], "guarded": {"users": []}, "with": {"topic": "orders"}}
    return build_config(
        kafka.bootstrap, ["orders"], [route], admin={**ADMIN_SECTION, **admin}, **GUARDED
    )


@asynccontextmanager
async def open_console(
    config: dict[str, Any], workers: int = 1, fragment: str = "", **options: Any
) -> AsyncIterator[tuple[Page, GatewayThread | GatewayProcess]]:
    """A page that shows a section of the console of a gateway; `options` are of `open_page`."""
    started = running_gateway(config) if workers == 1 else running_workers(config, workers)
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(started)
        admin = await stack.enter_async_context(open_admin_api(gateway))
        url = f"{str(admin.base_url).rstrip('/')}/console{fragment}"
        yield await stack.enter_async_context(open_page(url, **options)), gateway


def get_cell(page: Page, topic: str, partition: int) -> Locator:
    return page.locator(f'.cell[aria-label^="{topic} {partition},"]')
