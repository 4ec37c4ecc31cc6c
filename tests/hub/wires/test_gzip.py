"""What is deflated once is whole for each client, whenever it came and whatever it got between."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import zlib

import pytest
from support.outlet import FakeOutlet
from support.single_client import create_client, drain_outlet, run_loop_turns, write_records
from support.waiting import wait_until

from gateway.core.channel.chunk_ring import ChannelEvent, CountedBytes
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import EndReason, SlowClientPolicy
from gateway.formats import create_format
from gateway.hub.fanout.client import Client
from gateway.hub.wires.ndjson import NdjsonWire
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wire import Beginning, Wire
from gateway.hub.wires.wrapping import LAST_CHUNK, ChunkedWire, GzipWire
from gateway.wire.gzip import HEADER, Crc32Sum

WIRES = [
    GzipWire(SseWire()),
    ChunkedWire(GzipWire(SseWire())),
    GzipWire(NdjsonWire(positions=True)),
    GzipWire(NdjsonWire()),
]
VALUE = b'{"order":%d,"customer":"ada","paid":true,"note":"%b"}'

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)


def join_body(wire: Wire, pieces: list[bytes]) -> bytes:
    """Without HTTP's frame."""
    data = b"".join(pieces)
    if not isinstance(wire, ChunkedWire):
        return data
    out, at = b"", 0
    while data[at:] != LAST_CHUNK:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        out += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        assert size and data[at - 2 : at] == b"\r\n"
    return out


def has_flush_at_end(wire: Wire, written: bytes) -> bool:
    """An empty stored block: there all decoders hand on what they have."""
    data = join_body(wire, [written, LAST_CHUNK]) if isinstance(wire, ChunkedWire) else written
    return data.endswith(b"\0\0\xff\xff")


def find_orders(text: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb'"order":(\d+)', text)]


def build_event(n: int, size: int = 0) -> ChannelEvent:
    value = VALUE % (n, b"x" * size)
    return ChannelEvent(None, b"data: %b\n" % value, b"text")


async def attach_client(wire: Wire, beside: Client | None = None, **options: object) -> Client:
    client = create_client(wire, sibling=beside, **options)  # type: ignore[arg-type]
    client.attach(FakeOutlet())
    await run_loop_turns()
    return client


def get_outlet(client: Client) -> FakeOutlet:
    assert isinstance(client.outlet, FakeOutlet)
    return client.outlet


@every_wire
@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_and_whatever_happens_gets_all_of_it_and_a_right_end(wire, seed):
    """Clients come, stall, fall out of the ring and are behind, are told that nothing happens, and
    are ended; in between records are written, small ones and large ones. Small pieces had no flush
    behind them, which Go's decoder waits for."""
    draw = random.Random(seed)
    first = await attach_client(wire, max_ring_bytes=3000)
    crowd, came = [first], {first: 0}
    outlets = {first: get_outlet(first)}
    written = 0
    for _ in range(120):
        one = draw.choice(crowd)
        match draw.randrange(8):
            case 0 if len(crowd) < 12:
                new = await attach_client(wire, beside=first)
                crowd.append(new)
                came[new], outlets[new] = written, get_outlet(new)
            case 1:
                outlets[one].capacity = draw.choice([-1, 50, 400])
            case 2:
                outlets[one].capacity = float("inf")
                drain_outlet(one)
            case 3:
                one.check_heartbeat(asyncio.get_running_loop().time() + 10_000 * draw.randrange(2))
            case _:
                count = draw.choice([1, 1, 1, 2, 30])
                notes = [b"x" * draw.choice([0, 10, 300]) for _ in range(count)]
                write_records(first, *(VALUE % (written + n, note) for n, note in enumerate(notes)))
                written += count
        if draw.random() < 0.7:
            await run_loop_turns(draw.randrange(4))
    for client, its in outlets.items():
        its.capacity = float("inf")
        drain_outlet(client)
    await wait_until(lambda: all(client.state is None for client in crowd), "all ride")
    for client, its in outlets.items():
        client.end(EndReason.DRAIN)
        await wait_until(lambda its=its: its.is_finished)
        text = gzip.decompress(join_body(wire, its.chunks))
        assert find_orders(text) == list(range(came[client], written))
        assert all(has_flush_at_end(wire, each) for each in its.chunks[:-1] if each != HEADER)


@every_wire
async def test_what_only_one_client_hears_ends_with_a_flush(wire: Wire):
    """It is small, and small pieces had none."""
    alone = {
        "begin": wire.encode_begin(Beginning({"topics": []}, b"token", position_refused=True)),
        "begin again": wire.encode_begin(Beginning({"topics": []}, b"token", True, True)),
        "an event": wire.encode_event("challenge", {"guard": "jwt"}),
        "a heartbeat": wire.encode_heartbeat(),
    }
    assert [name for name, data in alone.items() if not has_flush_at_end(wire, data)] == []


async def test_a_chunk_is_the_same_bytes_for_those_who_came_at_different_times():
    wire = GzipWire(SseWire())
    first = await attach_client(wire)
    write_records(first, VALUE % (0, b"x" * 400))
    await run_loop_turns()
    second = await attach_client(wire, beside=first)
    write_records(first, VALUE % (1, b"x" * 400))
    await run_loop_turns()
    one, other = get_outlet(first).chunks, get_outlet(second).chunks
    assert one[-1] is other[-1]
    assert len(one) == len(other) + 1
    assert one[0].startswith(HEADER) and other[0].startswith(HEADER)
    assert not any(piece.startswith(HEADER) for piece in one[1:] + other[1:])


async def test_each_piece_can_be_read_as_soon_as_it_comes():
    client = await attach_client(GzipWire(SseWire()))
    inflating = zlib.decompressobj(31)
    for n, note in enumerate((b"", b"x" * 300, b"", b"y" * 70_000)):
        write_records(client, VALUE % (n, note))
        await run_loop_turns()
        text = inflating.decompress(b"".join(get_outlet(client).chunks))
        assert find_orders(text) == [n] and text.endswith(b"\n\n")
        get_outlet(client).chunks.clear()


@pytest.mark.parametrize("slow", [SlowClientPolicy.SKIP, SlowClientPolicy.DISCONNECT])
async def test_gaps_and_ends_of_slow_ones_are_counted(slow: SlowClientPolicy):
    client = await attach_client(GzipWire(SseWire()), max_ring_bytes=3000, slow_policy=slow)
    its = get_outlet(client)
    for n in range(50):  # no turn of the loop in between: no round
        write_records(client, VALUE % (n, b"x" * 300))
    if slow is SlowClientPolicy.SKIP:
        await wait_until(lambda: len(its.chunks) > 1)
        client.end(EndReason.DRAIN)
    await wait_until(lambda: its.is_finished)
    text = gzip.decompress(b"".join(its.chunks))
    told = b"event: gap" if slow is SlowClientPolicy.SKIP else b'{"reason":"slow"}'
    assert told in text


async def test_without_an_outlet_it_is_the_same():
    client = create_client(GzipWire(SseWire()), heartbeat=0.0)
    stream = client.pull()
    client.check_heartbeat(asyncio.get_running_loop().time())
    got = [await anext(stream), await anext(stream)]
    write_records(client, VALUE % (0, b""))
    while not find_orders(zlib.decompressobj(31).decompress(b"".join(got))):
        got.append(await anext(stream))
    client.end(EndReason.DRAIN)
    got += [piece async for piece in stream]
    text = gzip.decompress(b"".join(got))
    assert find_orders(text) == [0] and text.endswith(b"\n\n")
    assert SseWire().encode_heartbeat() in text


async def test_riding_costs_a_client_nothing_until_its_end(monkeypatch: pytest.MonkeyPatch):
    client = await attach_client(GzipWire(SseWire()))
    its = get_outlet(client)
    for name in ("_stop_counting_shared", "_resume_counting_shared", "count_private", "take"):
        monkeypatch.delattr(Subscription, name)
    for n in range(10):
        write_records(client, VALUE % (n, b"x" * 300))
        await run_loop_turns()
    monkeypatch.undo()
    client.end(EndReason.DRAIN)
    await wait_until(lambda: its.is_finished)
    assert find_orders(gzip.decompress(b"".join(its.chunks))) == list(range(10))


def test_a_chunk_says_what_it_inflates_to():
    plain, encoder = (
        wire.create_encoder(create_format("value")) for wire in (SseWire(), GzipWire(SseWire()))
    )
    for events in ([build_event(0)], [build_event(n, 300) for n in range(20)]):
        data, text = encoder.encode_events(events, b"view0"), plain.encode_events(events, b"view0")
        assert isinstance(data, CountedBytes) and data.sum == Crc32Sum.from_bytes(text)
        assert zlib.decompressobj(-15).decompress(data) == text
    assert encoder.encode_events([], b"view0") == b""
    framed = (
        ChunkedWire(GzipWire(SseWire()))
        .create_encoder(create_format("value"))
        .encode_events([build_event(0)], b"view0")
    )
    assert isinstance(framed, CountedBytes) and framed.sum == Crc32Sum.from_bytes(
        plain.encode_events([build_event(0)], b"view0")
    )


def test_equal_wires_share_and_a_compressed_one_shares_with_no_other():
    assert GzipWire(SseWire()) == GzipWire(SseWire()) and hash(GzipWire(SseWire())) == hash(
        GzipWire(SseWire())
    )
    assert (
        len(
            {
                SseWire(),
                GzipWire(SseWire()),
                ChunkedWire(SseWire()),
                ChunkedWire(GzipWire(SseWire())),
                GzipWire(NdjsonWire()),
            }
        )
        == 5
    )


def test_lines_without_positions_begin_with_the_header_alone():
    first = GzipWire(NdjsonWire()).encode_begin(Beginning({}, b"token"))
    assert first == HEADER and isinstance(first, CountedBytes) and first.sum == Crc32Sum()
