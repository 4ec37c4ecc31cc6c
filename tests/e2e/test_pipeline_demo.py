"""`gateway pipeline demo` as a newcomer meets it: a shop in Kafka, Spark's rows of it in a page."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from support.browser import running_browser
from support.demo import DemoProcess, running_demo
from typer.testing import CliRunner

from gateway.cli import app

# A Python worker of Spark takes up to 10 s to start, and a job waits up to 60 s to try again.
DEMO_TIMEOUT_S = 900.0


@asynccontextmanager
async def shop(place: Path, *options: str) -> AsyncIterator[DemoProcess]:
    """Listening; ended with the block. place: what is temporary is there."""
    command = ("pipeline", "demo")
    environ = {**os.environ, "TMPDIR": str(place)}
    async with running_demo(
        0, *options, command=command, environment=environ, timeout_s=DEMO_TIMEOUT_S
    ) as running:
        try:
            yield running
        except TimeoutError as error:
            raise AssertionError(f"{error}; it printed: {running.output[-4000:]}") from error
        finally:  # what a killed one would leave; it holds the output open
            if not running.is_ended:
                for child in psutil.Process(running.process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                await running.send_signal(signal.SIGKILL)


@pytest.mark.needs("java17", "chromium")
@pytest.mark.timeout(3 * DEMO_TIMEOUT_S)
async def test_the_shop_comes_to_the_page_and_leaves_nothing_behind(tmp_path: Path):
    async with (
        shop(tmp_path, "--clicks", "20", "--orders", "10") as running,
        running_browser() as tab,
    ):
        await tab.open_url(running.url)
        await tab.wait_for_script(
            "return document.querySelectorAll('#parts li').length >= 4", DEMO_TIMEOUT_S
        )
        for job in ("known", "visits", "settled"):
            shown = f"return Number(document.querySelector('[data-job={job}]').dataset.count) > 5"
            await tab.wait_for_script(shown, DEMO_TIMEOUT_S)
        await tab.wait_for_script(
            "return Number(document.getElementById('unpaid').textContent) > 2", DEMO_TIMEOUT_S
        )
        await tab.wait_for_script(
            "return document.querySelectorAll('#jobs tr').length >= 3", DEMO_TIMEOUT_S
        )
        assert "country" not in await tab.get_text("#known tr td:nth-child(3)")
        assert await tab.run_script("return document.querySelector('[data-state=failed]')") is None
        assert [line for line in await tab.read_console() if line.startswith("SEVERE")] == []
        family = psutil.Process(running.process.pid).children(recursive=True)
        assert await running.send_signal(signal.SIGTERM) in (0, -signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert os.listdir(tmp_path) == []


def test_its_configuration_is_one_to_start_from(tmp_path: Path):
    printed = CliRunner().invoke(app, ["pipeline", "demo", "--print-config"])
    file = tmp_path / "pipeline.yaml"
    file.write_text(printed.stdout)
    checked = CliRunner().invoke(app, ["check", str(file)])
    assert (printed.exit_code, checked.exit_code) == (0, 0), checked.stderr
    listed = CliRunner().invoke(app, ["pipeline", "list", "-c", str(file)])
    assert all(job in listed.stdout for job in ("known", "visits", "settled"))
