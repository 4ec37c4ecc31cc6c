"""Faults of the networks: between gateways and brokers, and between clients and gateways."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random

from support.kafka_proxy import ApiKey, BrokerProxy
from support.tasks import running_task
from support.tcp_proxy import TcpProxy

from gateway.core.error_code import ErrorCode

from ..schedule import PlannedFault
from ..world import World
from .effects import EFFECT_TIMEOUT_S, FaultAction, wait_for_effect

DELAY_S = 0.2
RATE_BYTES_PER_S = 64 << 10
STALL_SHARE, STALL_S = 0.01, 1.0
CUT_INTERVAL_S = 0.5
RETRY_S = 0.2
MEASURED_ANSWERS = 3
FETCH_ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE,
)


def _choose_broker(world: World, fault: PlannedFault) -> BrokerProxy:
    return Random(fault.choice).choice(list(world.broker_proxy.brokers))


async def _wait_for_connections(proxies: Iterable[TcpProxy]) -> None:
    """Wait until clients are connected: another fault may have ended all of them just now."""
    proxies = list(proxies)
    await wait_for_effect(
        lambda: any(each.connection_count for each in proxies), "no client is connected"
    )


async def _wait_for_silence(proxies: Iterable[TcpProxy]) -> None:
    """Wait until nothing is delivered any more. AssertionError if something is after that."""
    proxies = list(proxies)
    last, since = -1, 0.0

    def is_silent() -> bool:
        nonlocal last, since
        delivered, now = sum(each.bytes_to_client for each in proxies), time.monotonic()
        if delivered != last:
            last, since = delivered, now
        return now - since > 0.3

    await wait_for_effect(is_silent, "bytes are still delivered")


@asynccontextmanager
async def _cut_again_and_again(proxies: Iterable[TcpProxy]) -> AsyncIterator[str]:
    proxies = list(proxies)
    open_count = sum(each.connection_count for each in proxies)
    connects = sum(len(each.accepted_at) for each in proxies)

    def was_cut() -> bool:
        # Each client that was cut may come back on a way without a proxy.
        is_empty = open_count > 0 and not any(each.connection_count for each in proxies)
        return is_empty or sum(len(each.accepted_at) for each in proxies) > connects

    async def cut_forever() -> None:
        while True:
            for proxy in proxies:
                proxy.cut()
            await asyncio.sleep(CUT_INTERVAL_S)

    async with running_task(cut_forever()):
        await wait_for_effect(was_cut, "connections are neither gone nor new")
        yield f"{open_count} connections were reset, and so is what comes, every {CUT_INTERVAL_S} s"


@asynccontextmanager
async def hide_broker(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Drop every packet to and from a broker: connections stay, half-open."""
    broker = _choose_broker(world, fault)
    await broker.hide()
    try:
        await _wait_for_silence([broker])
        yield f"{broker.connection_count} connections to node {broker.node_id} carry nothing"
    finally:
        await broker.unhide()


@asynccontextmanager
async def reset_brokers(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Reset all connections to brokers, again and again."""
    async with _cut_again_and_again(world.broker_proxy.brokers) as effect:
        yield effect


async def _measure_answer(world: World) -> tuple[float, int]:
    """Return the seconds that the quickest of some answers of a broker takes, and its bytes.

    Another fault may cut the connection meanwhile, or have stopped a broker.
    """
    deadline = time.monotonic() + EFFECT_TIMEOUT_S
    while True:
        running = (each for each in world.kafka.nodes if each.is_running and not each.is_frozen)
        try:
            return await _measure_answer_of(world.broker_proxy[next(running).id])
        except (OSError, asyncio.IncompleteReadError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(RETRY_S)


async def _measure_answer_of(broker: BrokerProxy) -> tuple[float, int]:
    took: list[tuple[float, int]] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        for _ in range(MEASURED_ANSWERS):
            began = time.monotonic()
            writer.write(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 0, -1))
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            took.append((time.monotonic() - began, size))
    finally:
        writer.close()
    return min(took)


@asynccontextmanager
async def _all_brokers(
    world: World, begin: Callable[[BrokerProxy], None], end: Callable[[BrokerProxy], None]
) -> AsyncIterator[None]:
    """Do something to the way to every broker."""
    for broker in world.broker_proxy.brokers:
        begin(broker)
    try:
        yield
    finally:
        for broker in world.broker_proxy.brokers:
            end(broker)


@asynccontextmanager
async def slow_brokers(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Deliver everything of the brokers 200 ms later."""
    async with _all_brokers(
        world, lambda each: each.set_delay(DELAY_S), lambda each: each.set_delay(0)
    ):
        took, _ = await _measure_answer(world)
        assert took >= DELAY_S, f"an answer takes {took:.3f} s"
        yield f"an answer takes {took:.3f} s"


@asynccontextmanager
async def throttle_brokers(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Let the answers of the brokers through at 64 KB a second for each connection."""
    async with _all_brokers(
        world, lambda each: each.set_rate(RATE_BYTES_PER_S), lambda each: each.set_rate(None)
    ):
        took, size = await _measure_answer(world)
        assert took >= size / RATE_BYTES_PER_S, f"an answer of {size} bytes takes {took:.4f} s"
        yield f"an answer of {size} bytes takes {took:.4f} s"


@asynccontextmanager
async def stall_brokers(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Hold back one percent of the answers of the brokers for a second."""
    brokers = list(world.broker_proxy.brokers)
    for broker in brokers:
        broker.stall_count = 0
        broker.set_stalls(STALL_SHARE, STALL_S)
    try:
        await wait_for_effect(lambda: any(each.stall_count for each in brokers), "no stall")
        yield f"{STALL_SHARE:.0%} of the answers come {STALL_S:g} s late, one of them has"
    finally:
        for broker in brokers:
            broker.set_stalls(0, 0)


@asynccontextmanager
async def inject_errors(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Put an error code into every fetch answer of a broker."""
    random = Random(fault.choice)
    broker, code = _choose_broker(world, fault), random.choice(FETCH_ERRORS)
    injection = world.broker_proxy.inject_error(ApiKey.FETCH, code, node=broker.node_id)
    try:
        await wait_for_effect(lambda: injection.hit_count, f"node {broker.node_id} is not asked")
        yield f"fetch answers of node {broker.node_id} say {code.name}"
    finally:
        world.broker_proxy.remove_injection(injection)


@asynccontextmanager
async def cut_clients(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Reset the connections of the clients behind a proxy, again and again."""
    async with _cut_again_and_again(world.client_proxies) as effect:
        yield effect


@asynccontextmanager
async def stall_clients(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Have the clients behind a proxy stop reading."""
    await _wait_for_connections(world.client_proxies)
    for proxy in world.client_proxies:
        proxy.stall()
    try:
        await _wait_for_silence(world.client_proxies)
        count = sum(each.connection_count for each in world.client_proxies)
        yield f"{count} connections are not read"
    finally:
        for proxy in world.client_proxies:
            proxy.unstall()


@asynccontextmanager
async def hide_gateways(world: World, fault: PlannedFault) -> AsyncIterator[str]:
    """Drop every packet between a gateway and its clients behind a proxy."""
    await _wait_for_connections(world.client_proxies)
    # A gateway that was restarted may have none: its clients went to another.
    connected = [each for each in world.client_proxies if each.connection_count]
    proxy = connected[fault.choice % len(connected)]
    await proxy.hide()
    try:
        await _wait_for_silence([proxy])
        yield f"{proxy.connection_count} connections of clients carry nothing"
    finally:
        await proxy.unhide()


NETWORK_FAULTS: Mapping[str, FaultAction] = {
    "brokers-half-open": hide_broker,
    "brokers-reset": reset_brokers,
    "brokers-slow": slow_brokers,
    "brokers-throttled": throttle_brokers,
    "brokers-stalling": stall_brokers,
    "broker-errors": inject_errors,
    "clients-cut": cut_clients,
    "clients-stalled": stall_clients,
    "clients-half-open": hide_gateways,
}
