"""`gateway demo` as a newcomer meets it: the page, its curl lines, its configuration."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from support.browser import ENTER, SPACE, TAB, Browser, running_browser
from support.demo import START_TIMEOUT_S, DemoProcess, running_demo

from gateway.web.demo import find_free_port

GATEWAY = (sys.executable, "-m", "gateway")


async def output(*arguments: str, within: float = START_TIMEOUT_S) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *GATEWAY, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(within):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


@pytest.fixture
async def tab() -> AsyncIterator[Browser]:
    async with running_browser() as tab:
        yield tab


async def shows(tab: Browser, id: str, pattern: str, within: float = START_TIMEOUT_S) -> None:
    await tab.wait_for_script(
        f"return /{pattern}/.test(document.getElementById('{id}').textContent)", within
    )


async def live(tab: Browser, count: int) -> None:
    """So many of the two streams have a connection."""
    states = "document.querySelectorAll('.state[data-state=live]')"
    await tab.wait_for_script(f"return {states}.length === {count}", START_TIMEOUT_S)


async def is_alive(tab: Browser) -> None:
    """Both streams are live, every figure is one, orders have come."""
    await live(tab, 2)
    for figure in ("cpu", "memory", "read", "written", "received", "sent"):
        await shows(tab, figure, "[0-9]")
    await tab.wait_for_script(
        "return document.querySelectorAll('#orders tr').length > 3", START_TIMEOUT_S
    )


@pytest.mark.needs("chromium")
async def test_the_page_lives_and_outlives_its_server(tab: Browser):
    """Killed and started again, the demo has another Kafka: the page's place in the old one is
    refused, and it says so and goes on. It took the new orders for the old ones' steps once,
    and told them as lost."""
    async with running_demo() as first:
        await tab.open_url(f"{first.url}/")
        await is_alive(tab)
        assert await tab.get_text("#partitions") == "12, all ready"
        await shows(tab, "checked", "order updates, none lost, none twice")
        await first.send_signal(signal.SIGKILL)
        await live(tab, 0)
        async with running_demo(first.port):
            await is_alive(tab)
            await shows(tab, "gaps", "^1: position-refused$")
            checked = int((await tab.get_text("#checked")).partition(" ")[0])
            await shows(
                tab, "checked", f"^(?!{checked} )[0-9]+ order updates, none lost, none twice"
            )


@pytest.mark.night
@pytest.mark.needs("chromium")
async def test_a_page_that_was_cut_off_from_another_kafka_begins_anew(tab: Browser):
    """Its `?lastEventId=` was refused with 400, which ends an EventSource."""
    async with running_demo() as first:
        await tab.open_url(f"{first.url}/")
        await is_alive(tab)
        await focus(tab, "cut")
        await tab.press_keys(ENTER)
        await shows(tab, "cut", "Reconnect")
        await first.send_signal(signal.SIGKILL)
        async with running_demo(first.port):
            await tab.press_keys(ENTER)
            await live(tab, 2)
            await is_alive(tab)


@pytest.mark.needs("chromium")
async def test_the_page_is_used_by_keys_alone_and_fits_a_phone(tab: Browser):
    """Cut and reconnected by the button: what was ordered meanwhile has come, once."""
    async with running_demo() as running:
        for width, height, dark in ((1280, 900, False), (390, 844, True)):
            await tab.emulate_screen(width=width, height=height, is_dark=dark)
            await tab.open_url(f"{running.url}/")
            await is_alive(tab)
            over = "return document.documentElement.scrollWidth - window.innerWidth"
            assert await tab.run_script(over) <= 0
            root = "getComputedStyle(document.documentElement)"
            ground = await tab.run_script(f"return {root}.backgroundColor")
            light = sum(int(part) for part in re.findall(r"\d+", ground)) > 3 * 128
            assert light is not dark, ground
        await focus(tab, "customer")
        await tab.press_keys("g")  # grace, in the list of names
        await shows(tab, "path", "/grace$".replace("/", r"\/"))
        names = "[...document.querySelectorAll('#orders td:nth-child(2)')].map(e => e.textContent)"
        await tab.wait_for_script(f"return {names}.length > 0", START_TIMEOUT_S)
        assert set(await tab.run_script(f"return {names}")) == {"grace"}
        await focus(tab, "cut")
        await tab.press_keys(SPACE)
        await shows(tab, "cut", "Reconnect")
        seen = await tab.get_text("#count")
        await more_orders_of("grace", running)
        assert await tab.get_text("#count") == seen
        await tab.press_keys(ENTER)
        await live(tab, 2)
        await shows(tab, "message", "^[1-9][0-9]* order events happened .* Nothing is missing")
        assert await tab.get_text("#reconnects") == "1"
        assert await tab.get_text("#gaps") == "none"
        assert "lost or twice" not in await tab.get_text("#checked")


async def more_orders_of(customer: str, running: DemoProcess) -> None:
    """Until one more has come."""
    url, asked = f"{running.url}/events/orders/{customer}", {"from": "live", "until": "1"}
    async with httpx.AsyncClient(trust_env=False, timeout=START_TIMEOUT_S) as http:
        assert "event: end" in (await http.get(url, params=asked)).text


async def focus(tab: Browser, id: str) -> None:
    for _ in range(20):
        if await tab.run_script("return document.activeElement.id") == id:
            return
        await tab.press_keys(TAB)
    raise AssertionError(f"no way to #{id} by the tab key")


async def shell(line: str) -> bytes:
    """The first line in what a newcomer sees that is a record, or that it is ready."""
    wanted = '^data: [{]"(order|host)":|"value":|"status":"ready"'
    first = f"timeout 240 {line} --noproxy '*' -sS | grep -m1 -E '{wanted}'"
    process = await asyncio.create_subprocess_shell(first, stdout=PIPE, stderr=DEVNULL)
    return (await process.communicate())[0]


@pytest.mark.needs("curl")
async def test_its_curl_lines_work_as_printed_and_its_port_is_its_own():
    async with running_demo() as running:
        lines = [line.partition("  #")[0].strip() for line in running.output.splitlines()]
        curls = [line for line in lines if line.startswith("curl")]
        assert len(curls) == 5
        await until_ready(running.url)
        for line, out in zip(curls, await asyncio.gather(*map(shell, curls)), strict=True):
            assert out, line
        status, said = await output("demo", "--port", str(running.port), "--no-browser")
        assert status == 1
        assert f"cannot listen on 127.0.0.1:{running.port} " in said
        assert len(said.strip().splitlines()) == 1, said
        assert await running.send_signal(signal.SIGINT) == 0


@pytest.mark.needs("process")
async def test_its_configuration_checks_and_runs(tmp_path: Path):
    status, text = await output("demo", "--print-config")
    assert status == 0
    port = find_free_port("127.0.0.1")
    file = tmp_path / "gateway.yaml"
    file.write_text(text.replace("port: 8080", f"port: {port}"))
    assert await output("check", str(file)) == (0, f"{file}: ok\n")
    process = await asyncio.create_subprocess_exec(*GATEWAY, "run", "-c", str(file), stdout=DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            await until_ready(f"http://127.0.0.1:{port}")
            for path in ("/events/host", "/events/orders", "/records/orders", "/events/orders/ada"):
                answer = await http.get(path, params={"from": "earliest", "until": "latest"})
                assert answer.status_code == 200, path
                assert answer.text.endswith("\n\n") and "event: end" in answer.text
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0


async def until_ready(url: str) -> None:
    async with asyncio.timeout(START_TIMEOUT_S), httpx.AsyncClient(trust_env=False) as http:
        while True:
            with suppress(httpx.TransportError):
                if (await http.get(f"{url}/health/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
