"""A stream over several connections, played by a list of what each brings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence

import pytest
from support.waiting import wait_until

from gateway.cli.output import NO_COLOURS
from gateway.cli.tail.follower import StreamFollower
from gateway.cli.tail.printer import OutputClosed, OutputWriter, Printer, StatusReporter
from gateway.cli.tail.source import ConnectionLost, StreamEvent, StreamRefused
from gateway.cli.tail.target import OutputFormat
from gateway.errors import GatewayError

BEGIN = StreamEvent("begin", b'{"partitions": {"orders": 1}, "pending": []}', "p0")
GAP = StreamEvent(
    "gap", b'{"topic":"orders","partition":0,"from":1,"to":5,"reason":"retention"}', "p5"
)
UNTIL = StreamEvent("end", b'{"reason": "until"}')


def record(n: int) -> StreamEvent:
    return StreamEvent("message", str(n).encode(), f"p{n}")


class Played:
    """Each connection is batches of items, and perhaps an exception at its end."""

    display_name = "here"
    retry: float | None = 0.0

    def __init__(self, *connections: Sequence[list[StreamEvent] | Exception]) -> None:
        self.connections = list(connections)
        self.asked: list[str | None] = []

    async def iter_events(self, position: str | None) -> AsyncGenerator[list[StreamEvent]]:
        self.asked.append(position)
        for step in self.connections.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step

    async def close(self) -> None:
        pass


class Written(OutputWriter):
    def __init__(self) -> None:
        self.data = b""
        self.broken = False

    async def write(self, data: bytes) -> None:
        if self.broken and data:
            raise OutputClosed
        self.data += data


def follower(source: Played, **options) -> tuple[StreamFollower, Written]:
    written = Written()
    notes = StatusReporter(quiet=False, colours=NO_COLOURS)
    return StreamFollower(
        source, Printer(OutputFormat.VALUE, tty=False), written, notes, **options
    ), written


async def test_it_goes_on_from_the_last_record_until_the_end(capsys):
    source = Played(
        [[BEGIN, record(1)], [record(2)], ConnectionLost("cut")],
        [ConnectionLost("away", was_reached=False)],
        [[BEGIN._replace(position="p2"), record(3), UNTIL, record(4)]],
    )
    it, written = follower(source)
    await it.run()
    assert written.data == b"1\n2\n3\n"
    assert source.asked == [None, "p2", "p2"]
    assert it.position == "p3"
    said = capsys.readouterr().err
    assert "gateway: following orders (1 partition)\n" in said
    assert "gateway: cut; connecting again in 0.0 s\n" in said


async def test_an_end_without_a_word_is_a_cut():
    it, written = follower(Played([[BEGIN, record(1)]], [[record(2), UNTIL]]))
    await it.run()
    assert written.data == b"1\n2\n"


@pytest.mark.parametrize("reason", ["drain", "lifetime", "slow", "kafka-unavailable", "tomorrow"])
async def test_an_end_that_is_not_the_end_is_gone_on_from(reason):
    end = StreamEvent("end", b'{"reason": "%b"}' % reason.encode(), "p9")
    source = Played([[BEGIN, end]], [[UNTIL]])
    await follower(source)[0].run()
    assert source.asked[1] == "p9"


async def test_a_count_is_of_all_connections_and_ends_within_a_batch():
    deleted = StreamEvent("delete", b'{"key": "a"}', "p2")
    source = Played(
        [[BEGIN, record(1), deleted], ConnectionLost("cut")], [[record(3), record(4), record(5)]]
    )
    it, written = follower(source, remaining=4)
    await it.run()
    assert written.data == b"1\n3\n4\n"
    assert source.asked == [None, "p2"]
    assert it.position == "p4"


async def test_a_gap_is_told_and_passed_over(capsys):
    it, written = follower(Played([[BEGIN, record(1), GAP, record(5), UNTIL]]))
    await it.run()
    assert written.data == b"1\n5\n"
    said = capsys.readouterr().err
    assert "gateway: gap in orders-0 from offset 1 to 5 (retention)\n" in said


NOT_TEXT = StreamEvent("error", b'{"code":"value-not-text","message":"no text"}', "p2")


@pytest.mark.parametrize("missing", [GAP, NOT_TEXT])
async def test_strictly_what_will_not_come_is_a_failure_and_the_position_stays_before(missing):
    it, written = follower(Played([[BEGIN, record(1), missing, record(5)]]), strict=True)
    with pytest.raises(GatewayError, match=r"retention|no text"):
        await it.run()
    assert (written.data, it.position) == (b"1\n", "p1")


async def test_strictly_a_partition_that_is_late_is_no_failure():
    late = StreamEvent(
        "error", b'{"code":"no-leader","message":"m","topic":"orders","partition":0}'
    )
    it, written = follower(Played([[BEGIN, late, record(1), UNTIL]]), strict=True)
    await it.run()
    assert written.data == b"1\n"


async def test_an_address_where_nobody_is_is_told_at_once():
    source = Played([ConnectionLost("Connection refused", was_reached=False)])
    with pytest.raises(GatewayError, match="no stream from here: Connection refused"):
        await follower(source)[0].run()


async def test_a_server_that_has_no_stream_yet_is_waited_for():
    async def explain() -> str:
        return "not there"

    source = Played([ConnectionLost("503", retry_after=0.0)], [[UNTIL]])
    await follower(source)[0].run()
    assert len(source.asked) == 2
    with pytest.raises(GatewayError, match="no stream from here: not there"):
        await follower(Played([ConnectionLost("503")]), explain_absence=explain)[0].run()


async def test_a_refusal_is_final_also_later():
    source = Played([[BEGIN, record(1)], ConnectionLost("cut")], [StreamRefused("401: expired")])
    it, _ = follower(source)
    with pytest.raises(StreamRefused, match="401"):
        await it.run()
    assert it.position == "p1"


async def test_what_kafka_has_no_more_by_policy_is_a_failure():
    end = StreamEvent("end", b'{"reason": "offset-out-of-range"}')
    with pytest.raises(GatewayError, match="offset-out-of-range"):
        await follower(Played([[BEGIN, end]]))[0].run()


async def test_the_position_does_not_move_past_what_could_not_be_written():
    source = Played([[BEGIN, record(1)], [record(2)]])
    it, written = follower(source)
    original = source.iter_events

    async def iter_events(position):
        async for batch in original(position):
            yield batch
            written.broken = True

    source.iter_events = iter_events
    with pytest.raises(OutputClosed):
        await it.run()
    assert it.position == "p1"


async def test_events_of_another_server_are_told_as_they_are(capsys):
    it, _ = follower(Played([[StreamEvent("weather", b"rain\x1b[2J"), UNTIL]]))
    await it.run()
    assert capsys.readouterr().err == 'gateway: weather {"data": "rain\\u001b[2J"}\n'


# Standard output


async def test_a_full_pipe_keeps_nobody_waiting_and_gets_all():
    reading, writing = os.pipe()
    data = os.urandom(1 << 20)
    task = asyncio.create_task(OutputWriter(writing).write(data))
    ticks = 0
    for _ in range(20):
        await asyncio.sleep(0)
        ticks += 1
    assert ticks == 20 and not task.done()
    got = b""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while len(got) < len(data):
            got += await asyncio.to_thread(pipe.read, 65536)
        assert got == data
        await task
    with pytest.raises(OutputClosed):
        await OutputWriter(writing).write(b"more")
    os.close(writing)


async def test_a_reader_that_goes_away_is_noticed_with_nothing_to_write():
    reading, writing = os.pipe()
    gone = asyncio.create_task(OutputWriter(writing).wait_closed())
    await asyncio.sleep(0)
    assert not gone.done()
    os.close(reading)
    await wait_until(gone.done, "the end of the pipe")
    os.close(writing)


async def test_a_file_is_written_too(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        await OutputWriter(file.fileno()).write(b"abc")
    assert (tmp_path / "out").read_bytes() == b"abc"
