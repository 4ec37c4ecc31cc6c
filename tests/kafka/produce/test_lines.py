from __future__ import annotations

import asyncio
import hashlib
import io
import threading

import pytest
from support.pipe import pipe

from gateway.errors import GatewayError
from gateway.kafka.produce import lines as module
from gateway.kafka.produce.lines import Digest, Lines, chunks


@pytest.mark.parametrize(
    ("lines", "line", "key", "value"),
    [
        (Lines(), b"\xff\x00 \r", None, b"\xff\x00 \r"),
        (Lines(), b"", None, b""),
        (Lines(null_empty=True), b"", None, None),
        (Lines(separator=b":"), b"alice:a:b", b"alice", b"a:b"),
        (Lines(separator=b":"), b":x", b"", b"x"),
        (Lines(separator=b"::", null_empty=True), b"alice::", b"alice", None),
        (Lines(key="id"), b'{"id": "a/b"}', b"a/b", b'{"id": "a/b"}'),
        (Lines(key="id"), b'{"id": 7}', b"7", b'{"id": 7}'),
        (Lines(key="id"), b'{"id": null}', None, b'{"id": null}'),
        (Lines(key="id"), b'{"id": {"b": [1]}}', b'{"b":[1]}', b'{"id": {"b": [1]}}'),
        (Lines(key="/a/1/b~1c"), b'{"a": [0, {"b/c": "k"}]}', b"k", b'{"a": [0, {"b/c": "k"}]}'),
        (Lines(key="id"), b"", None, b""),
    ],
)  # fmt: skip
def test_a_line_becomes_key_and_value(lines, line, key, value):
    assert lines.record(line, 1) == (key, value)


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (Lines(separator=b":"), b"alice", "line 17: no key separator"),
        (Lines(key="id"), b"{", "line 17: not JSON"),
        (Lines(key="id"), b"{}", "line 17: nothing at 'id'"),
        (Lines(key="id"), b"[1]", "line 17: nothing at 'id'"),
        (Lines(key="/a/9"), b'{"a": [1]}', "line 17: nothing at '/a/9'"),
        (Lines(key="/a/x"), b'{"a": [1]}', "line 17: nothing at '/a/x'"),
        (Lines(key="/a/b/c"), b'{"a": {"b": 1}}', "line 17: nothing at '/a/b/c'"),
    ],
)
def test_a_line_without_its_key_is_named(lines, line, said):
    with pytest.raises(GatewayError, match=said):
        lines.record(line, 17)


def test_a_key_is_found_in_one_way_only():
    with pytest.raises(ValueError, match="either"):
        Lines(key="id", separator=b":")


def test_the_ordered_digest_is_what_sha256sum_says_of_the_file():
    digest = Digest()
    for value in (b"a", None, b"\xffc"):
        digest.add(value)
    assert digest.ordered == hashlib.sha256(b"a\n\n\xffc\n").hexdigest()


def test_the_unordered_digest_survives_any_order_but_no_loss_and_no_duplicate():
    def unordered(*values: bytes) -> str:
        digest = Digest()
        for value in values:
            digest.add(value)
        return digest.unordered

    whole = unordered(b"a", b"b", b"c")
    assert unordered(b"c", b"a", b"b") == whole
    assert unordered(b"a", b"b") != whole
    assert unordered(b"a", b"b", b"c", b"c") != whole
    assert unordered(b"a", b"a") != unordered(b"b", b"b")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
async def test_lines_are_whole_however_they_are_read(size, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", size)
    data = b"one\n\ntwo\r\n\xff\x00\nlast"
    got = [line async for chunk in chunks(io.BytesIO(data)) for line in chunk]
    assert got == [b"one", b"", b"two\r", b"\xff\x00", b"last"]


async def test_a_final_lf_ends_the_last_line_and_begins_none():
    assert [chunk async for chunk in chunks(io.BytesIO(b"a\nb\n"))] == [[b"a", b"b"]]
    assert [chunk async for chunk in chunks(io.BytesIO(b""))] == []


async def test_a_line_comes_before_its_source_ends():
    with pipe() as (source, sink):
        sink.write(b"now\nlat")
        coming = chunks(source)
        assert await anext(coming) == [b"now"]
        sink.write(b"er\n")
        assert await anext(coming) == [b"later"]
        sink.close()
        assert [chunk async for chunk in coming] == []


async def test_a_source_that_cannot_be_read_says_so():
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError("the disk is gone")

    with pytest.raises(GatewayError, match="the disk is gone"):
        [chunk async for chunk in chunks(Broken())]


async def test_reading_never_blocks_the_end_of_the_process():
    with pipe() as (source, sink):
        sink.write(b"x\n")
        coming = chunks(source)
        await anext(coming)
        readers = [each for each in threading.enumerate() if each.name == "produce-input"]
        assert readers
        assert all(each.daemon for each in readers)
        sink.close()
        assert [chunk async for chunk in coming] == []


@pytest.mark.filterwarnings("error")
def test_who_stops_listening_early_leaves_no_traceback(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)

    async def first() -> list[bytes]:
        return await anext(chunks(io.BytesIO(b"a\n" * 1000)))

    assert asyncio.run(first()) == [b"a"]
    for reader in threading.enumerate():
        if reader.name == "produce-input":
            reader.join(timeout=10)
            assert not reader.is_alive()
