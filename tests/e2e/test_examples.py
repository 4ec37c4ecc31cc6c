"""Every example, run by the lines of its README against one demo."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.browser import ENTER, SPACE, TAB, Browser, running_browser
from support.demo import START_TIMEOUT_S, DemoProcess, running_demo
from support.ports import find_free_port
from support.requirements import require_tools, skip_or_fail
from support.scrape import fetch_metrics
from support.shell import ShellProcess, running_shell
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from gateway.core.token.resume_token import TokenWriter, TopicPositions, parse_token, seal_token

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS = ["created", "paid", "shipped"]
CUSTOMERS = 8
SHOWN_ROWS = 20  # of the page for React, at most

pytestmark = pytest.mark.asyncio(loop_scope="module")
of_module = {"scope": "module", "loop_scope": "module"}


def lines_of(name: str, first: str = "") -> list[str]:
    """The commands of an example's README, all or those that begin so."""
    text = (EXAMPLES / name / "README.md").read_text()
    return [line for line in re.findall(r"^    (\S.*)", text, re.M) if line.startswith(first)]


def line_of(name: str, first: str) -> str:
    (line,) = lines_of(name, first)
    return line


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone, as far as examples need one."""
    place = tmp_path_factory.mktemp("clone")
    made = shutil.ignore_patterns(
        "node_modules", "dist", "__pycache__", "gateway.crt", "gateway.key", "tmp"
    )
    shutil.copytree(EXAMPLES, place / "examples", ignore=made)
    for folder in (Path("gateway", "web", "js"), Path("deploy", "proxies")):
        shutil.copytree(ROOT / folder, place / folder)
    return place


@pytest_asyncio.fixture(**of_module)
async def running(place: Path) -> AsyncIterator[DemoProcess]:
    lines = {line for name in ("page", "react", "nginx") for line in lines_of(name, "make demo")}
    (line,) = lines
    _, _, arguments = line.partition("ARGS=")
    async with running_demo(0, *shlex.split(shlex.split(arguments)[0]), directory=place) as running:
        yield running


@pytest_asyncio.fixture(**of_module)
async def tab() -> AsyncIterator[Browser]:
    """One for all examples; it takes any certificate, as its user would be asked to."""
    async with running_browser("--ignore-certificate-errors") as tab:
        yield tab


@pytest_asyncio.fixture(**of_module)
async def built(place: Path) -> None:
    """What npm has to do."""
    require_tools("node", "npm")

    async def build(name: str) -> None:
        for line in lines_of(name, "npm"):
            async with running_shell(line, place, npm_config_prefer_offline="true") as npm:
                status = await npm.wait_ended(110)
            if status and line.endswith(" ci"):
                skip_or_fail(f"{line} failed: {npm.output[-500:]}")
            assert not status, npm.output

    await asyncio.gather(build("typescript"), build("react"))


async def every_order(url: str) -> list[dict[str, Any]]:
    """As it is now, in the order of each partition."""
    asked = {"from": "earliest", "until": "latest"}
    async with httpx.AsyncClient(trust_env=False, timeout=START_TIMEOUT_S) as http:
        answer = await http.get(
            f"{url}/events/orders", params=asked, headers={"Accept": "application/x-ndjson"}
        )
    *records, end = [json.loads(line) for line in answer.text.splitlines()]
    assert end["@end"]["reason"] == "until"
    return records


async def more_orders(running: DemoProcess, count: int) -> None:
    """Until so many have been placed from now on."""
    async with httpx.AsyncClient(trust_env=False, timeout=START_TIMEOUT_S) as http:
        answer = await http.get(f"{running.url}/events/orders", params={"until": count})
        assert "event: end" in answer.text


def are_steps(rows: Iterable[list[str]]) -> None:
    """Of every order, each step once and none left out; the newest row first."""
    orders: dict[str, list[str]] = {}
    for order, _, status, *_ in rows:
        orders.setdefault(order, []).insert(0, status)
    assert orders
    for order, steps in orders.items():
        start = STEPS.index(steps[0])
        assert steps == STEPS[start : start + len(steps)], (order, steps)


# Programs that are killed, and go on


async def in_two_runs(line: str, place: Path) -> list[list[str]]:
    """What a program printed until it was killed, and after it was started again."""
    *_, file = shlex.split(line)
    printed = [await killed(line, place, place / file) for _ in range(2)]
    (place / file).unlink()
    return printed


async def killed(line: str, place: Path, position: Path) -> list[str]:
    """The orders that it prints until there are some, and the first ones' position is kept."""
    kept = set()
    async with running_shell(line, place) as program:

        def orders() -> list[str]:
            return [each for each in program.complete_lines if re.fullmatch(r"A-\d+ \w+ \w+", each)]

        def enough() -> bool:
            if position.exists():
                kept.add(position.read_text())
            return len(orders()) >= 4 and len(kept) >= 3  # where it began, and what came since

        await wait_until(
            lambda: enough() or program.is_ended, lambda: program.output, START_TIMEOUT_S
        )
        assert not program.is_ended, program.output
    return orders()


async def are_all(runs: list[list[str]], running: DemoProcess, again: int = 1) -> None:
    """Each order in its order and once, but that so many may have come again after the kill."""
    first, second = runs
    assert first[0] not in second
    assert len(set(first) & set(second)) <= again
    assert [len(set(run)) for run in runs] == [len(first), len(second)]
    seen = list(dict.fromkeys(first + second))
    every = [f"{o['order']} {o['customer']} {o['status']}" for o in await every_order(running.url)]
    for customer in {line.split()[1] for line in seen}:
        mine = [line for line in seen if line.split()[1] == customer]
        assert mine == [line for line in every if line.split()[1] == customer][: len(mine)]


def usage(script: str) -> str:
    """The command in a script's own docstring."""
    (line,) = re.findall(r"^    (python .*)", (EXAMPLES / script).read_text(), re.M)
    return str(line)


@pytest.mark.needs("process")
async def test_the_consumer_that_is_killed_goes_on_where_it_was(place: Path, running: DemoProcess):
    line = usage("consumer.py").replace("SERVERS", running.bootstrap_servers)
    line = line.replace("FILE-FOR-THE-POSITION", "consumer.position")
    await are_all(await in_two_runs(line, place), running)


@pytest.mark.needs("process")
async def test_lines_by_http_alone_go_on_where_they_were(place: Path, running: DemoProcess):
    line = usage("lines.py").replace("URL", f"{running.url}/events/orders")
    line = line.replace("FILE-FOR-THE-POSITION", "lines.position")
    await are_all(await in_two_runs(line, place), running)


@pytest.mark.needs("node", "npm")
async def test_the_typescript_client_compiles_and_goes_on_where_it_was(
    place: Path, running: DemoProcess, built: None
):
    line = line_of("typescript", "node").replace("http://127.0.0.1:8080", running.url)
    runs = await in_two_runs(line, place)
    await are_all(runs, running, again=len(runs[0]) - 1)  # a message's


@pytest.mark.needs("node", "npm")
async def test_the_typescript_client_ends_with_the_reader_of_its_pipe(
    place: Path, running: DemoProcess, built: None
):
    """It died with a trace of `write EPIPE`."""
    line = line_of("typescript", "node").replace("http://127.0.0.1:8080", running.url)
    async with running_shell(
        f"{line.replace('orders.position', 'head.position')} | head -1", place
    ) as shell:
        assert await shell.wait_ended(START_TIMEOUT_S) == 0
    assert "EPIPE" not in shell.output


# Pages


async def rows(tab: Browser) -> list[list[str]]:
    cells = "[...row.cells].map((cell) => cell.textContent)"
    return list(
        await tab.run_script(
            f"return [...document.querySelectorAll('tbody tr')].map(row => {cells})"
        )
    )


async def is_live(tab: Browser, count: int = 1) -> None:
    await tab.wait_for_script(
        f"return document.querySelectorAll('.state[data-state=live]').length === {count}",
        START_TIMEOUT_S,
    )


async def has_rows(tab: Browser, count: int) -> None:
    await tab.wait_for_script(
        f"return document.querySelectorAll('tbody tr').length >= {count}", START_TIMEOUT_S
    )


async def fits(tab: Browser, url: str) -> None:
    """A desk by day and a phone at night; left as the latter."""
    for width, height, dark in ((1280, 900, False), (390, 844, True)):
        await tab.emulate_screen(width=width, height=height, is_dark=dark)
        await tab.open_url("about:blank")
        await tab.open_url(url)
        await is_live(tab)
        over = "return document.documentElement.scrollWidth - window.innerWidth"
        assert await tab.run_script(over) <= 0
        ground = "return getComputedStyle(document.documentElement).backgroundColor"
        light = sum(map(int, re.findall(r"\d+", await tab.run_script(ground)))) > 3 * 128
        assert light is not dark


async def focus(tab: Browser, selector: str) -> None:
    for _ in range(10):
        if await tab.run_script(f"return document.activeElement.matches({selector!r})"):
            return
        await tab.press_keys(TAB)
    raise AssertionError(f"no way to {selector} by the tab key")


def page_of(name: str, base: str) -> str:
    """The address in its README, at another base."""
    text = (EXAMPLES / name / "README.md").read_text()
    (found,) = set(re.findall(r"<http://127\.0\.0\.1:8080(/\S+)>", text))
    return f"{base}{found}"


@pytest.mark.needs("chromium")
async def test_the_page_outlives_cuts_and_pauses_and_tells_gaps(running: DemoProcess, tab: Browser):
    async with TcpProxy("127.0.0.1", running.port) as network:
        await fits(tab, page_of("page", f"http://{network.address}"))
        await has_rows(tab, 4)
        await network.refuse()
        await tab.wait_for_script(
            "return document.querySelector('[data-state=reconnecting]')", START_TIMEOUT_S
        )
        await network.restore()
        await is_live(tab)
        await focus(tab, "#pause")
        await tab.press_keys(SPACE)
        await tab.wait_for_script("return document.querySelector('[data-state=closed]')")
        before = await rows(tab)
        await more_orders(running, 2)
        assert await rows(tab) == before
        await tab.press_keys(ENTER)
        await is_live(tab)
        await tab.wait_for_script(
            f"return document.querySelector('td').textContent !== '{before[0][0]}'"
        )
        are_steps(await rows(tab))
        assert await tab.get_text("#gap") == ""
        gap = {"topic": "orders", "partition": 1, "from": 2, "to": 5, "reason": "retention"}
        made = "new MessageEvent('gap', {data: JSON.stringify(arguments[0])})"
        await tab.run_script(f"source.dispatchEvent({made})", gap)
        assert await tab.get_text("#gap") == (
            "Some orders will not come (orders-1: offsets 2 to 5, retention)."
        )
        await tab.open_url("about:blank")


@pytest.mark.needs("chromium", "node", "npm")
async def test_the_react_page_changes_in_place_and_goes_on_after_unmounting_and_reload(
    running: DemoProcess, tab: Browser, built: None
):
    """In StrictMode, which mounts twice. Unmounted, it has no stream."""
    async with TcpProxy("127.0.0.1", running.port) as network:
        url = page_of("react", f"http://{network.address}")
        await fits(tab, url)
        await has_rows(tab, 4)
        are_steps(await rows(tab))
        kept = await rows(tab)
        await tab.open_url("about:blank")
        await tab.open_url(url)
        await more_than(tab, kept)
        await focus(tab, "button")
        await tab.press_keys(SPACE)
        await tab.wait_for_script("return !document.querySelector('table')")
        async with asyncio.timeout(START_TIMEOUT_S):
            while (await fetch_metrics(running.url)).sum_series("gateway_clients") > 0:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await tab.press_keys(SPACE)
        await more_than(tab, kept)
        await one_customer(tab, network)
        await tab.open_url("about:blank")


async def one_customer(tab: Browser, network: TcpProxy) -> None:
    """Chosen by a key; the connection stays."""
    connects = len(network.accepted_at)
    await tab.run_script("document.querySelector('select').focus()")
    await tab.press_keys("g")  # grace
    await tab.wait_for_script(
        "const names = [...document.querySelectorAll('td:nth-child(2)')].map(e => e.textContent);"
        "return names.length > 0 && names.every((name) => name === 'grace')",
        START_TIMEOUT_S,
    )
    are_steps(await rows(tab))
    assert await tab.get_text(".state") == "live"
    assert len(network.accepted_at) == connects
    assert not await tab.run_script("return document.querySelector('[role=alert]')")


async def more_than(tab: Browser, kept: list[list[str]]) -> None:
    """Its newest rows are there, and newer ones.

    On a busy machine they may be so many that the page shows no row of before.
    """
    first = kept[0][:3]
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            shown = await rows(tab)
            names = [row[:3] for row in shown]
            if first in names[1:] or (len(names) == SHOWN_ROWS and first not in names):
                break
    are_steps(shown)


# Servers


async def answers(port: int, running: ShellProcess) -> None:
    def taken() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await wait_until(lambda: taken() or running.is_ended, lambda: running.output, START_TIMEOUT_S)
    assert not running.is_ended, running.output


@pytest.mark.needs("curl", "chromium")
async def test_fastapi_gives_its_streams_to_those_who_are_logged_in(
    place: Path, running: DemoProcess, tab: Browser
):
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    assert line_of("fastapi", "export").startswith("export KAFKA=")
    serving = line_of("fastapi", "uvicorn").replace("8001", str(port))
    login, stream, paid = (
        line.replace("http://127.0.0.1:8001", url) for line in lines_of("fastapi", "curl")
    )
    async with running_shell(serving, place, KAFKA=running.bootstrap_servers) as app:
        await answers(port, app)
        async with running_shell(stream.replace("-b cookies", "-sSi"), place) as refused:
            assert await refused.wait_ended(START_TIMEOUT_S) == 0
        assert refused.output.startswith("HTTP/1.1 401 ") and "log in first" in refused.output
        async with running_shell(f"{login} -sS -w '%{{http_code}}\\n'", place) as curl:
            await curl.wait_ended(START_TIMEOUT_S)
        assert curl.complete_lines == ["204"]
        async with running_shell(f"{stream}?from=earliest", place) as curl:
            await wait_until(
                lambda: 'data: {"order"' in curl.output, lambda: curl.output, START_TIMEOUT_S
            )
        before = await sums_paid(running)
        async with running_shell(f"{paid} -sS", place) as curl:
            await curl.wait_ended(START_TIMEOUT_S)
        assert json.loads(curl.output)["ada"] in (await sums_paid(running))[len(before) - 1 :]
        await logs_in(tab, url)


async def sums_paid(running: DemoProcess) -> list[float]:
    """What ada's paid orders came to, after each of them."""
    every = [each for each in await every_order(running.url) if each["customer"] == "ada"]
    totals = [order["total"] for order in every if order["status"] == "paid"]
    return [round(sum(totals[:n]), 2) for n in range(len(totals) + 1)]


async def logs_in(tab: Browser, url: str) -> None:
    await tab.open_url(f"{url}/")
    await tab.wait_for_script(
        "return document.body.textContent.includes('log in first')", START_TIMEOUT_S
    )
    await focus(tab, "[type=password]")
    for password in ("wrong", "lovelace"):
        await tab.press_keys(password + ENTER)
        if password == "wrong":
            await tab.wait_for_script(
                "return document.body.textContent.includes('no such name')", START_TIMEOUT_S
            )
            await tab.run_script("document.querySelector('[type=password]').value = ''")
    await is_live(tab)
    await has_rows(tab, 4)
    assert await tab.run_script("return getComputedStyle(document.forms[0]).display") == "none"
    await fits(tab, f"{url}/")
    await tab.open_url("about:blank")


@pytest_asyncio.fixture(**of_module)
async def nginx(place: Path, running: DemoProcess) -> AsyncIterator[int]:
    """Its port."""
    require_tools("nginx")
    port = find_free_port()
    file = place / "deploy" / "proxies" / "nginx.conf"
    text = file.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{running.port}")
    file.write_text(text.replace("8443", str(port)))
    async with running_shell(line_of("nginx", "openssl"), place) as openssl:
        assert await openssl.wait_ended(START_TIMEOUT_S) == 0, openssl.output
    async with running_shell(line_of("nginx", "nginx"), place) as nginx:
        await answers(port, nginx)
        yield port


@pytest.mark.needs("chromium", "nginx")
async def test_behind_nginx_eight_streams_of_a_page_share_a_connection(
    running: DemoProcess, nginx: int, tab: Browser
):
    async with TcpProxy("127.0.0.1", nginx) as network:
        url = page_of("nginx", f"https://{network.address}")
        await tab.open_url(url)
        await is_live(tab, CUSTOMERS)
        assert await tab.get_text("#protocol") == "h2"
        await have_orders(tab, CUSTOMERS)
        assert network.connection_count <= 2  # a browser opens one to spare
        width = "return document.documentElement.scrollWidth - window.innerWidth"
        assert await tab.run_script(width) <= 0
        await tab.open_url("about:blank")
    await tab.open_url(page_of("nginx", running.url))
    await have_orders(tab, 6)
    assert await tab.get_text("#live") == f"6 of {CUSTOMERS}"
    await tab.open_url("about:blank")


async def have_orders(tab: Browser, count: int) -> None:
    have = "[...document.querySelectorAll('.last')].filter(e => /A-/.test(e.textContent))"
    await tab.wait_for_script(f"return {have}.length === {count}", START_TIMEOUT_S)


@pytest.mark.needs("chromium", "nginx")
async def test_behind_nginx_a_page_has_its_websocket(nginx: int, tab: Browser):
    await tab.open_url(f"https://127.0.0.1:{nginx}/health/live")
    await tab.run_script(
        "const socket = new WebSocket(`wss://${location.host}/events/orders?from=earliest`);"
        "socket.onmessage = ({ data }) => (window.heard ??= []).push(JSON.parse(data).type)"
    )
    await tab.wait_for_script("return window.heard?.includes('records')", START_TIMEOUT_S)
    await tab.open_url("about:blank")


@pytest.mark.needs("curl", "nginx")
async def test_behind_nginx_curl_has_events_at_once_and_long_positions_reach_the_gateway(
    place: Path, nginx: int
):
    line = line_of("nginx", "curl").replace("127.0.0.1:8443", f"127.0.0.1:{nginx}")
    async with running_shell(f"{line} -sSi", place) as curl:
        await wait_until(
            lambda: 'data: {"order"' in curl.output, lambda: curl.output, START_TIMEOUT_S
        )
        assert curl.output.startswith("HTTP/2 200")
    (position, *_) = re.findall(r"^id: (\S+)", curl.output, re.M)
    mine = parse_token(position)
    places = TopicPositions("orders", "", [10**10] * 2000, [0] * 2000)
    token = seal_token(TokenWriter("", [places], mine.issued).to_text(), mine.view_digest).decode()
    assert len(token) > 12_000
    async with running_shell(f"{line} -sSi -H 'Last-Event-ID: {token}'", place) as curl:
        of_ours = "the resume token is of 2000 partitions of orders"  # which has 12
        await wait_until(lambda: of_ours in curl.output, lambda: curl.output, START_TIMEOUT_S)
