from __future__ import annotations

import asyncio
import hashlib
import io
import threading

import pytest
from support.pipe import open_pipe

from gateway.errors import GatewayError
from gateway.kafka.produce.line_producer import LineFormat, ValueDigest, iter_line_chunks


@pytest.mark.parametrize(
    ("lines", "line", "key", "value"),
    [
        (LineFormat(), b"\xff\x00 \r", None, b"\xff\x00 \r"),
        (LineFormat(), b"", None, b""),
        (LineFormat(null_empty=True), b"", None, None),
        (LineFormat(separator=b":"), b"alice:a:b", b"alice", b"a:b"),
        (LineFormat(separator=b":"), b":x", b"", b"x"),
        (LineFormat(separator=b"::", null_empty=True), b"alice::", b"alice", None),
        (LineFormat(key="id"), b'{"id": "a/b"}', b"a/b", b'{"id": "a/b"}'),
        (LineFormat(key="id"), b'{"id": 7}', b"7", b'{"id": 7}'),
        (LineFormat(key="id"), b'{"id": null}', None, b'{"id": null}'),
        (LineFormat(key="id"), b'{"id": {"b": [1]}}', b'{"b":[1]}', b'{"id": {"b": [1]}}'),
        (
            LineFormat(key="/a/1/b~1c"),
            b'{"a": [0, {"b/c": "k"}]}',
            b"k",
            b'{"a": [0, {"b/c": "k"}]}',
        ),
        (LineFormat(key="id"), b"", None, b""),
    ],
)
def test_a_line_becomes_key_and_value(lines, line, key, value):
    assert lines.parse_line(line, 1) == (key, value)


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (LineFormat(separator=b":"), b"alice", "line 17: no key separator"),
        (LineFormat(key="id"), b"{", "line 17: not JSON"),
        (LineFormat(key="id"), b"{}", "line 17: nothing at 'id'"),
        (LineFormat(key="id"), b"[1]", "line 17: nothing at 'id'"),
        (LineFormat(key="/a/9"), b'{"a": [1]}', "line 17: nothing at '/a/9'"),
        (LineFormat(key="/a/-1"), b'{"a": [1]}', "line 17: nothing at '/a/-1'"),
        (LineFormat(key="/a/b/c"), b'{"a": {"b": 1}}', "line 17: nothing at '/a/b/c'"),
    ],
)
def test_a_line_without_its_key_is_named(lines, line, said):
    with pytest.raises(GatewayError, match=said):
        lines.parse_line(line, 17)


def test_a_key_is_found_in_one_way_only():
    with pytest.raises(ValueError, match="either"):
        LineFormat(key="id", separator=b":")


def test_the_ordered_digest_is_what_sha256sum_says_of_the_file():
    digest = ValueDigest()
    for value in (b"a", None, b"\xffc"):
        digest.add(value)
    assert digest.ordered_digest == hashlib.sha256(b"a\n\n\xffc\n").hexdigest()


def test_the_unordered_digest_survives_any_order_but_no_loss_and_no_duplicate():
    def compute_digest(*values: bytes) -> str:
        digest = ValueDigest()
        for value in values:
            digest.add(value)
        return digest.unordered_digest

    whole = compute_digest(b"a", b"b", b"c")
    assert compute_digest(b"c", b"a", b"b") == whole
    assert compute_digest(b"a", b"b") != whole
    assert compute_digest(b"a", b"b", b"c", b"c") != whole
    assert compute_digest(b"a", b"a") != compute_digest(b"b", b"b")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
async def test_lines_are_whole_however_they_are_read(size):
    data = b"one\n\ntwo\r\n\xff\x00\nlast"
    chunks = iter_line_chunks(io.BytesIO(data), chunk_bytes=size)
    got = [line async for chunk in chunks for line in chunk]
    assert got == [b"one", b"", b"two\r", b"\xff\x00", b"last"]


async def test_a_final_lf_ends_the_last_line_and_begins_none():
    assert [chunk async for chunk in iter_line_chunks(io.BytesIO(b"a\nb\n"))] == [[b"a", b"b"]]
    assert [chunk async for chunk in iter_line_chunks(io.BytesIO(b""))] == []


async def test_a_line_comes_before_its_source_ends():
    with open_pipe() as (source, sink):
        sink.write(b"now\nlat")
        coming = iter_line_chunks(source)
        assert await anext(coming) == [b"now"]
        sink.write(b"er\n")
        assert await anext(coming) == [b"later"]
        sink.close()
        assert [chunk async for chunk in coming] == []


async def test_a_source_that_cannot_be_read_says_so():
    class BrokenSource(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(GatewayError, match="the disk is gone"):
        [chunk async for chunk in iter_line_chunks(BrokenSource())]


async def test_reading_never_blocks_the_end_of_the_process():
    with open_pipe() as (source, sink):
        sink.write(b"x\n")
        coming = iter_line_chunks(source)
        await anext(coming)
        readers = [each for each in threading.enumerate() if each.name == "produce-input"]
        assert readers
        assert all(each.daemon for each in readers)
        sink.close()
        assert [chunk async for chunk in coming] == []


@pytest.mark.filterwarnings("error")
def test_who_stops_listening_early_leaves_no_traceback():
    async def read_first() -> list[bytes]:
        return await anext(iter_line_chunks(io.BytesIO(b"a\n" * 1000), chunk_bytes=2))

    assert asyncio.run(read_first()) == [b"a"]
    for reader in threading.enumerate():
        if reader.name == "produce-input":
            reader.join(timeout=10)
            assert not reader.is_alive()
