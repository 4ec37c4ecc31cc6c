"""Faults of the processes of the gateways, and of what they ask and stand behind."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from random import Random

import httpx
import psutil
from support.gateways import GatewayProcess, create_http_client
from support.workers import find_workers, has_ended

from ..reactive import GROUP_NAME
from ..schedule import PlannedFault
from ..startup import CLOCK_GATEWAY, WORKER_COUNT
from ..views import LEDGER, TYPED
from ..world import World
from .effects import EFFECT_TIMEOUT_S, FaultAction, FaultNotPossible, clients_away, wait_for_effect

# From the earliest to the latest it is less than the day for which Kafka keeps tombstones. To a
# gateway whose clock is further ahead a position is older than that, and it rightly says
# `compacted`.
CLOCK_STEPS_S = (3600, -3600, 36_000, -36_000)
CLOCK_TOLERANCE_S = 30
SPARE_DESCRIPTORS = 2  # that a worker may still open
SPARE_MEMORY_BYTES = 24 << 20


def _choose_gateway(world: World, fault: PlannedFault) -> tuple[int, GatewayProcess]:
    number = fault.choice % len(world.gateways)
    return number + 1, world.gateways[number]


def _choose_worker(world: World, fault: PlannedFault) -> tuple[str, GatewayProcess, psutil.Process]:
    number, gateway = _choose_gateway(world, fault)
    workers = find_workers(gateway)
    chosen = Random(fault.choice).choice(sorted(workers))
    return f"worker {chosen} of gateway {number}", gateway, workers[chosen]


async def _wait_for_workers(gateway: GatewayProcess) -> None:
    await wait_for_effect(
        lambda: len(find_workers(gateway)) == WORKER_COUNT,
        lambda: f"the workers: {gateway.read_log_tail()}",
    )
    await gateway.wait_until_ready()


@asynccontextmanager
async def kill_gateway(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Kill a gateway by SIGKILL, and start it again."""
    number, gateway = _choose_gateway(world, fault)
    workers = list(find_workers(gateway).values())
    await gateway.kill()
    await wait_for_effect(lambda: all(map(has_ended, workers)), "the end of the workers")
    try:
        yield f"gateway {number} was killed, and its {len(workers)} workers ended"
    finally:
        await gateway.start()
        await _wait_for_workers(gateway)


@asynccontextmanager
async def restart_gateway(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """End a gateway by SIGTERM, and start it again."""
    number, gateway = _choose_gateway(world, fault)
    status = await gateway.stop()
    try:
        yield f"gateway {number} drained and ended with status {status}"
    finally:
        await gateway.start()
        await _wait_for_workers(gateway)


@asynccontextmanager
async def kill_worker(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Kill a worker by SIGKILL; another one starts by itself."""
    name, gateway, worker = _choose_worker(world, fault)
    worker.kill()
    await wait_for_effect(lambda: has_ended(worker), "the end of the worker")
    try:
        yield f"{name}, process {worker.pid}, ended"
    finally:
        await _wait_for_workers(gateway)


@asynccontextmanager
async def freeze_worker(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Block the event loop of a worker, by SIGSTOP of its process and SIGCONT."""
    name, _, worker = _choose_worker(world, fault)
    worker.suspend()
    try:
        await wait_for_effect(lambda: worker.status() == psutil.STATUS_STOPPED, "its stop")
        yield f"{name} is stopped, in place of a blocked event loop"
    finally:
        worker.resume()


@asynccontextmanager
async def reload_gateway(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Reload a gateway by SIGHUP with one more route, and with the old ones again at the end."""
    number, gateway = _choose_gateway(world, fault)
    config = gateway.config
    before = gateway.log.count("configuration reloaded")
    extra = {"when": [{"path": f"/extra-{fault.choice}"}], "with": {"topic": LEDGER}}
    gateway.write_config({**config, "routes": [*config["routes"], extra]})
    gateway.send_signal(signal.SIGHUP)
    try:
        await wait_for_effect(
            lambda: gateway.log.count("configuration reloaded") > before, gateway.read_log_tail
        )
        line = next(
            line for line in reversed(gateway.log.splitlines()) if "configuration reloaded" in line
        )
        yield f"gateway {number} says: {line[line.index('configuration reloaded') :]:.120}"
    finally:
        gateway.write_config(config)
        if gateway.is_alive:
            gateway.send_signal(signal.SIGHUP)


@asynccontextmanager
async def step_clock(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Set the wall clock of a gateway one or ten hours ahead or back, and right again."""
    if world.clock is None:
        raise FaultNotPossible("the clock needs libfaketime: apt-get install libfaketime")
    step_s = CLOCK_STEPS_S[fault.choice % len(CLOCK_STEPS_S)]
    gateway = world.gateways[CLOCK_GATEWAY]
    world.clock.step(step_s)
    measured_s = 0.0
    try:
        async with create_http_client(gateway) as http:
            deadline = asyncio.get_running_loop().time() + EFFECT_TIMEOUT_S
            while abs(measured_s - step_s) > CLOCK_TOLERANCE_S:
                late = asyncio.get_running_loop().time() > deadline
                assert not late, f"its clock is {measured_s:+.0f} s off"
                with contextlib.suppress(httpx.TransportError):
                    date = (await http.get("/health/live")).headers["date"]
                    measured_s = parsedate_to_datetime(date).timestamp() - time.time()
                await asyncio.sleep(0.1)
        yield f"the clock of gateway {CLOCK_GATEWAY + 1} is {measured_s:+.0f} s off"
    finally:
        world.clock.step(0)


@asynccontextmanager
async def exhaust_descriptors(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Limit the descriptors of a worker to those that it has, while clients come back."""
    name, _, worker = _choose_worker(world, fault)
    before = worker.rlimit(resource.RLIMIT_NOFILE)
    limit = worker.num_fds() + SPARE_DESCRIPTORS
    worker.rlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        for proxy in world.client_proxies:
            proxy.cut()
        await wait_for_effect(
            lambda: has_ended(worker) or worker.num_fds() >= limit - SPARE_DESCRIPTORS,
            f"{name} does not come to its limit",
        )
        yield f"{name} has {worker.num_fds()} of {limit} descriptors"
    finally:
        if not has_ended(worker):
            worker.rlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def limit_memory(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Limit the address space of a worker to little more than it has (RLIMIT_AS)."""
    name, gateway, worker = _choose_worker(world, fault)
    before = worker.rlimit(resource.RLIMIT_AS)
    limit = worker.memory_info().vms + SPARE_MEMORY_BYTES
    worker.rlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        assert worker.rlimit(resource.RLIMIT_AS)[0] == limit
        yield f"{name} has at most {SPARE_MEMORY_BYTES >> 20} MiB more, {limit >> 20} MiB in all"
    finally:
        if not has_ended(worker):
            worker.rlimit(resource.RLIMIT_AS, before)
        await _wait_for_workers(gateway)


@asynccontextmanager
async def reload_front(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Have the proxy in front of the gateways read its file again."""
    if world.front is None:
        raise FaultNotPossible("no proxy is installed")
    lines = len(world.front.log.splitlines())
    await world.front.reload()
    said = world.front.log.splitlines()[lines:]
    yield f"{world.front.NAME} has read its file again, and said {len(said)} lines"


async def _is_refused(address: str) -> bool:
    """Return whether a connection is refused; not if nobody answers within two seconds."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(2.0):
            _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return True
    except TimeoutError:
        return False
    writer.close()
    return False


async def _return_guarded(world: World) -> int:
    """Have the guarded clients come back; returns how many they are."""
    guarded = [each for each in world.list_clients(LEDGER) if each.log.plan.view.user]
    async with clients_away(guarded):
        pass
    return len(guarded)


@asynccontextmanager
async def _login_away(world: World, *, is_refused: bool) -> AsyncIterator[int]:
    """Have the guarded clients come back while nobody can log in, and let them log in again.

    Gives how many they are.
    """
    try:
        assert await _is_refused(world.login_proxy.address) is is_refused
        yield await _return_guarded(world)
    finally:
        await world.login_proxy.restore()


@asynccontextmanager
async def refuse_login(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Refuse connections to the issuer's keys and to the application that knows sessions."""
    await world.login_proxy.refuse()
    async with _login_away(world, is_refused=True) as count:
        yield f"connections are refused; {count} guarded clients come back meanwhile"


@asynccontextmanager
async def hide_login(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Never answer those who ask for the issuer's keys and for sessions."""
    await world.login_proxy.hide()
    async with _login_away(world, is_refused=False) as count:
        yield f"nobody is answered; {count} guarded clients come back meanwhile"


@asynccontextmanager
async def refuse_registry(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Refuse connections to the schema registry, while records come with a new schema."""
    await world.registry_proxy.refuse()
    try:
        number = world.codec.add_schema()
        clients = [each.log for each in world.list_clients(TYPED)]
        before = [len(log.errors) for log in clients]

        def count_told() -> int:
            pairs = zip(clients, before, strict=True)
            return sum(len(log.errors) > count for log, count in pairs)

        await wait_for_effect(count_told, "no client is told that the registry is away")
        yield f"nobody knows schema {number}; {count_told()} clients are told so"
    finally:
        await world.registry_proxy.restore()


async def _find_held_up(world: World, reason: str) -> str:
    """Return what a member says that its batches wait for; nothing if none waits for a reason."""
    for gateway in world.gateways:
        with contextlib.suppress(httpx.HTTPError, asyncio.TimeoutError, ValueError):
            # On a connection of its own, which any worker may take; a frozen one does not answer.
            async with asyncio.timeout(2), create_http_client(gateway) as http:
                state = (await http.get(f"/reactive/{GROUP_NAME}")).json()
                for lane in state.get("lanes", ()):
                    if reason in (held := str(lane["heldUpBy"] or "")):
                        return held
    return ""


@asynccontextmanager
async def refuse_backend(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """End the back end of the reactive group, or have it answer 503."""
    backend = world.group.backend
    is_ended = fault.choice % 2 == 0
    state, reason = ("has ended", "is not there") if is_ended else ("answers 503", "503")
    if is_ended:
        backend.kill()
    else:
        backend.set_orders(say=503)
    try:
        deadline = asyncio.get_running_loop().time() + EFFECT_TIMEOUT_S
        while not (held := await _find_held_up(world, reason)):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError("no member says that its back end is away")
            await asyncio.sleep(0.1)
        yield f"the back end {state}; a member says what its batches wait for: {held:.120}"
    finally:
        backend.set_orders()
        if is_ended:
            await backend.start()


@asynccontextmanager
async def kill_job(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Kill the process tree of the Spark job while it writes, by SIGKILL, and start it again."""
    job = world.job
    if job is None:
        raise FaultNotPossible("the world has no Spark job")
    await world.wait_until_job_writes()
    count = await asyncio.to_thread(job.kill)
    try:
        assert count, "the job had ended by itself"
        yield f"{count} processes of the Spark job, start {job.start_count}, were killed"
    finally:
        await asyncio.to_thread(job.start)


PROCESS_FAULTS: Mapping[str, FaultAction] = {
    "gateway-killed": kill_gateway,
    "gateway-restarted": restart_gateway,
    "worker-killed": kill_worker,
    "worker-frozen": freeze_worker,
    "gateway-reloaded": reload_gateway,
    "clock-stepped": step_clock,
    "descriptors-exhausted": exhaust_descriptors,
    "memory-limited": limit_memory,
    "proxy-reloaded": reload_front,
    "login-away": refuse_login,
    "login-hangs": hide_login,
    "registry-away": refuse_registry,
    "backend-away": refuse_backend,
    "job-killed": kill_job,
}
