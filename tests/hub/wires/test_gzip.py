"""What is deflated once is whole for each client, whenever it came and whatever it got between."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import zlib

import pytest
from support.one_client import client_of, write
from support.outlet import Outlet
from support.until import until

from gateway.core.channel.byte_counts import Counted
from gateway.core.channel.channel import Event
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.formats import format_for
from gateway.hub.fanout.client import Client
from gateway.hub.wires.chunked import LAST, Framed
from gateway.hub.wires.gzip import Gzip
from gateway.hub.wires.lines import Ndjson
from gateway.hub.wires.sse import Sse
from gateway.hub.wires.wire import Wire
from gateway.wire.crc import Sum
from gateway.wire.gzip import HEADER

WIRES = [Gzip(Sse()), Framed(Gzip(Sse())), Gzip(Ndjson(positions=True)), Gzip(Ndjson())]
VALUE = b'{"order":%d,"customer":"ada","paid":true,"note":"%b"}'

every_wire = pytest.mark.parametrize("wire", WIRES, ids=str)


def body(wire: Wire, pieces: list[bytes]) -> bytes:
    """Without HTTP's frame."""
    data = b"".join(pieces)
    if not isinstance(wire, Framed):
        return data
    out, at = b"", 0
    while data[at:] != LAST:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        out += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        assert size and data[at - 2 : at] == b"\r\n"
    return out


def ends_with_a_flush(wire: Wire, written: bytes) -> bool:
    """An empty stored block: there all decoders hand on what they have."""
    data = body(wire, [written, LAST]) if isinstance(wire, Framed) else written
    return data.endswith(b"\0\0\xff\xff")


def orders(text: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb'"order":(\d+)', text)]


def event(n: int, size: int = 0) -> Event:
    value = VALUE % (n, b"x" * size)
    return Event(None, b"data: %b\n" % value, b"text")


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def joined(wire: Wire, beside: Client | None = None, **options: object) -> Client:
    client = client_of(wire, beside=beside, **options)  # type: ignore[arg-type]
    client.attach(Outlet())
    await turns()
    return client


def outlet(client: Client) -> Outlet:
    assert isinstance(client.outlet, Outlet)
    return client.outlet


@every_wire
@pytest.mark.parametrize("seed", range(4))
async def test_whoever_comes_and_whatever_happens_gets_all_of_it_and_a_right_end(
    wire: Wire, seed: int
):
    """Clients come, stall, fall out of the ring and are behind, are told that nothing happens, and
    are ended; in between records are written, small ones and large ones. Small pieces had no flush
    behind them, which Go's decoder waits for."""
    draw = random.Random(seed)
    first = await joined(wire, ring=3000)
    crowd, came = [first], {first: 0}
    outlets = {first: outlet(first)}
    written = 0
    for _ in range(120):
        one = draw.choice(crowd)
        match draw.randrange(8):
            case 0 if len(crowd) < 12:
                new = await joined(wire, beside=first)
                crowd.append(new)
                came[new], outlets[new] = written, outlet(new)
            case 1:
                outlets[one].room = draw.choice([-1, 50, 400])
            case 2:
                outlets[one].room = float("inf")
                one.drained()
            case 3:
                one.beat(asyncio.get_running_loop().time() + 10_000 * draw.randrange(2))
            case _:
                count = draw.choice([1, 1, 1, 2, 30])
                notes = [b"x" * draw.choice([0, 10, 300]) for _ in range(count)]
                write(first, *(VALUE % (written + n, note) for n, note in enumerate(notes)))
                written += count
        if draw.random() < 0.7:
            await turns(draw.randrange(4))
    for client, its in outlets.items():
        its.room = float("inf")
        client.drained()
    await until(lambda: all(client._fan is not None for client in crowd), "all ride")
    for client, its in outlets.items():
        client.end("drain")
        await until(lambda its=its: its.finished)
        text = gzip.decompress(body(wire, its.got))
        assert orders(text) == list(range(came[client], written))
        assert all(ends_with_a_flush(wire, each) for each in its.got[:-1] if each != HEADER)


@every_wire
async def test_what_only_one_client_hears_ends_with_a_flush(wire: Wire):
    """It is small, and small pieces had none."""
    alone = {
        "begin": wire.begin({"topics": []}, b"token", refused=True),
        "begin again": wire.begin({"topics": []}, b"token", refused=True, again=True),
        "an event": wire.tell("challenge", {"guard": "jwt"}),
        "a heartbeat": wire.heartbeat(),
    }
    assert [name for name, data in alone.items() if not ends_with_a_flush(wire, data)] == []


async def test_a_chunk_is_the_same_bytes_for_those_who_came_at_different_times():
    wire = Gzip(Sse())
    first = await joined(wire)
    write(first, VALUE % (0, b"x" * 400))
    await turns()
    second = await joined(wire, beside=first)
    write(first, VALUE % (1, b"x" * 400))
    await turns()
    one, other = outlet(first).got, outlet(second).got
    assert one[-1] is other[-1]
    assert len(one) == len(other) + 1
    assert one[0].startswith(HEADER) and other[0].startswith(HEADER)
    assert not any(piece.startswith(HEADER) for piece in one[1:] + other[1:])


async def test_each_piece_can_be_read_as_soon_as_it_comes():
    client = await joined(Gzip(Sse()))
    inflating = zlib.decompressobj(31)
    for n, note in enumerate((b"", b"x" * 300, b"", b"y" * 70_000)):
        write(client, VALUE % (n, note))
        await turns()
        text = inflating.decompress(b"".join(outlet(client).got))
        assert orders(text) == [n] and text.endswith(b"\n\n")
        outlet(client).got.clear()


@pytest.mark.parametrize("slow", [SlowClient.SKIP, SlowClient.DISCONNECT])
async def test_gaps_and_ends_of_slow_ones_are_counted(slow: SlowClient):
    client = await joined(Gzip(Sse()), ring=3000, slow=slow)
    its = outlet(client)
    for n in range(50):  # no turn of the loop in between: no round
        write(client, VALUE % (n, b"x" * 300))
    if slow is SlowClient.SKIP:
        await until(lambda: len(its.got) > 1)
        client.end("drain")
    await until(lambda: its.finished)
    text = gzip.decompress(b"".join(its.got))
    told = b"event: gap" if slow is SlowClient.SKIP else b'{"reason":"slow"}'
    assert told in text


async def test_without_an_outlet_it_is_the_same():
    client = client_of(Gzip(Sse()), heartbeat=0.01)
    stream = client.stream()
    got = [await anext(stream), await anext(stream)]
    write(client, VALUE % (0, b""))
    while zlib.decompressobj(31).decompress(b"".join(got)).count(b"data: ") < 2:
        got.append(await anext(stream))
    client.end("drain")
    got += [piece async for piece in stream]
    text = gzip.decompress(b"".join(got))
    assert orders(text) == [0] and b":\n" in text and text.endswith(b"\n\n")


async def test_riding_costs_a_client_nothing_until_its_end(monkeypatch: pytest.MonkeyPatch):
    client = await joined(Gzip(Sse()))
    its = outlet(client)
    for name in ("_stop", "_ride_on", "add", "take"):
        monkeypatch.delattr(Subscription, name)
    for n in range(10):
        write(client, VALUE % (n, b"x" * 300))
        await turns()
    monkeypatch.undo()
    client.end("drain")
    await until(lambda: its.finished)
    assert orders(gzip.decompress(b"".join(its.got))) == list(range(10))


def test_a_chunk_says_what_it_inflates_to():
    plain, encoder = (wire.encoder(format_for("value")) for wire in (Sse(), Gzip(Sse())))
    for events in ([event(0)], [event(n, 300) for n in range(20)]):
        data, text = encoder.render(events, b"view0"), plain.render(events, b"view0")
        assert isinstance(data, Counted) and data.sum == Sum.of(text)
        assert zlib.decompressobj(-15).decompress(data) == text
    assert encoder.render([], b"view0") == b""
    framed = Framed(Gzip(Sse())).encoder(format_for("value")).render([event(0)], b"view0")
    assert isinstance(framed, Counted) and framed.sum == Sum.of(plain.render([event(0)], b"view0"))


def test_equal_wires_share_and_a_compressed_one_shares_with_no_other():
    assert Gzip(Sse()) == Gzip(Sse()) and hash(Gzip(Sse())) == hash(Gzip(Sse()))
    assert len({Sse(), Gzip(Sse()), Framed(Sse()), Framed(Gzip(Sse())), Gzip(Ndjson())}) == 5


def test_lines_without_positions_begin_with_the_header_alone():
    first = Gzip(Ndjson()).begin({}, b"token", refused=False)
    assert first == HEADER and isinstance(first, Counted) and first.sum == Sum()
