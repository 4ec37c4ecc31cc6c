"""Blocks that may stand in any order, and an end that is right."""

from __future__ import annotations

import gzip as reference
import json
import shutil
import subprocess
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import gzip
from gateway.wire.gzip import Crc32Sum

EMPTY_STORED = b"\0\0\xff\xff"  # its lengths; the bits before them may be those of another block

sizes = st.integers(0, 200_000)
text = sizes.map(lambda n: (b'data: {"customer": "ada"}\n\n' * n)[:n])
noise = sizes.map(lambda n: b"".join(crc.to_bytes(4, "big") for crc in map(_mixed, range(n // 4))))
pieces = st.lists(st.binary(max_size=600) | text | noise, max_size=6)


def _mixed(n: int) -> int:
    return zlib.crc32(n.to_bytes(4, "big"))


def answer(blocks: list[bytes], data: bytes) -> bytes:
    return gzip.HEADER + b"".join(blocks) + gzip.build_trailer(Crc32Sum.from_bytes(data))


@given(pieces)
def test_blocks_inflate_to_what_was_said_and_the_end_is_right(pieces: list[bytes]):
    data = b"".join(pieces)
    assert (
        reference.decompress(answer([gzip.compress_block(each) for each in pieces], data)) == data
    )


@given(pieces, st.randoms())
def test_a_block_means_the_same_wherever_it_stands(pieces: list[bytes], random):
    made = [(each, gzip.compress_block(each)) for each in pieces]
    random.shuffle(made)
    data = b"".join(each for each, _ in made)
    assert reference.decompress(answer([block for _, block in made], data)) == data


@given(pieces)
def test_all_of_a_block_is_there_as_soon_as_it_is_read(pieces: list[bytes]):
    inflating = zlib.decompressobj(31)
    assert inflating.decompress(gzip.HEADER) == b""
    for each in pieces:
        assert inflating.decompress(gzip.compress_block(each)) == each
    assert not inflating.eof


@given(pieces)
def test_each_piece_ends_with_an_empty_stored_block(pieces: list[bytes]):
    """Stored blocks had none behind them: Go's reader handed on nothing until it had 32 KiB."""
    for each in pieces:
        if each:
            assert gzip.compress_block(each).endswith(EMPTY_STORED)
            assert handed_on([gzip.compress_block(each)]) == [each]


@given(st.lists(st.binary(min_size=1, max_size=600), max_size=6))
def test_one_that_waits_for_a_flush_has_each_piece_as_it_comes(pieces: list[bytes]):
    assert handed_on([gzip.compress_block(each) for each in pieces]) == pieces


def handed_on(blocks: list[bytes]) -> list[bytes]:
    """What a decoder lets out after each, that does so at an empty stored block only."""
    inflating, kept, out = zlib.decompressobj(-15), b"", []
    for each in blocks:
        kept += inflating.decompress(each)
        if each.endswith(EMPTY_STORED):
            out.append(kept)
            kept = b""
    return out


@given(st.binary(max_size=gzip.MIN_COMPRESS_BYTES - 1))
def test_small_ones_are_stored(data: bytes):
    block = gzip.compress_block(data)
    assert block[5:] == data + gzip.FLUSH_BLOCK if data else block == b""


@given(noise.filter(bool))
def test_what_does_not_shrink_costs_five_bytes_in_64_kib_and_for_the_flush(data: bytes):
    assert len(gzip.compress_block(data)) <= len(data) + 5 * -(-len(data) // 65_535) + len(
        gzip.FLUSH_BLOCK
    )


def test_records_shrink():
    records = b"".join(
        b'data: {"order":%d,"customer":"c-%d","status":"paid"}\n\n' % (n, n * 7919 % 1000)
        for n in range(100)
    )
    assert len(gzip.compress_block(records)) < len(records) / 2.5


@pytest.mark.needs("process")
@pytest.mark.skipif(shutil.which("gunzip") is None, reason="gunzip is not here")
def test_gunzip_finds_nothing_wrong():
    pieces = [b"begin\n", b"a" * 70_000, b"", b"\0" * 3, json.dumps(list(range(2000))).encode()]
    data = b"".join(pieces)
    made = answer([gzip.compress_block(each) for each in pieces], data)
    checked = subprocess.run(["gunzip", "-tv"], input=made, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stderr.split()[-1]) == (0, b"OK")
    unpacked = subprocess.run(["gunzip"], input=made, capture_output=True, timeout=60)
    assert unpacked.stdout == data


@pytest.mark.parametrize("got", [Crc32Sum(1, 4), Crc32Sum(0, 5), Crc32Sum(2, 4 + (1 << 32))])
def test_a_wrong_end_is_found(got: Crc32Sum):
    """The check of the checks above."""
    with pytest.raises(reference.BadGzipFile):
        reference.decompress(gzip.HEADER + gzip.compress_block(b"data") + gzip.build_trailer(got))


def test_a_size_is_told_as_what_is_left_of_it_above_4_gib():
    assert gzip.build_trailer(Crc32Sum(7, (1 << 32) + 5)) == gzip.build_trailer(Crc32Sum(7, 5))


def test_a_whole_answer_is_the_same_each_time():
    data = b'{"n":1}\n' * 50
    assert reference.decompress(gzip.compress(data)) == data
    assert gzip.compress(data) == gzip.compress(data)
