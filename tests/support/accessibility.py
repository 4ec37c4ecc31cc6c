"""What axe-core finds in a page: contrast, names, roles, order of headings and more.

axe-core comes from npm, for tests only. It is evaluated in the page by the browser's own protocol,
which no Content-Security-Policy forbids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.clients.node_sse import install_packages

if TYPE_CHECKING:
    from playwright.async_api import Page

SOURCE_DIRECTORY = Path(__file__).parent / "axe"
BARRIERS = frozenset({"serious", "critical"})
"""The impacts that keep people from using a page (axe-core's API documentation, Results)."""


async def find_barriers(page: Page) -> Sequence[str]:
    """Return a line for each element that has a serious or critical finding.

    Args:
        page: The page, as it is shown now. What is hidden is not looked at.
    """
    await page.evaluate(await asyncio.to_thread(_load_axe))
    result: dict[str, Any] = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{found['id']} ({found['impact']}): {' '.join(node['target'])}: {node['failureSummary']}"
        for found in result["violations"]
        for node in found["nodes"]
        if found["impact"] in BARRIERS
    ]


@cache
def _load_axe() -> str:
    names = ("package.json", "package-lock.json")
    directory = install_packages("axe", [SOURCE_DIRECTORY / name for name in names])
    return (directory / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
