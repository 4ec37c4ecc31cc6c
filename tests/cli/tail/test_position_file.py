"""A position kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.tail.target import PositionFile
from gateway.errors import GatewayError


def test_what_is_kept_is_read_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "orders.position"
    assert PositionFile(path).read() is None
    for position in ("1aaa", "1bbb"):
        PositionFile(path).write(position)
        assert PositionFile(path).read() == position
    assert [each.name for each in tmp_path.iterdir()] == ["orders.position"]


def test_the_file_is_replaced_not_rewritten(tmp_path: Path):
    path = tmp_path / "p"
    file = PositionFile(path)
    file.write("1aaa")
    with path.open() as reader:
        file.write("1bbb")
        assert reader.read() == "1aaa\n"


def test_a_position_that_did_not_move_is_not_written(tmp_path: Path):
    path = tmp_path / "p"
    path.write_text("1aaa\n")
    file = PositionFile(path)
    file.read()
    before = path.stat().st_ino
    file.write("1aaa")
    file.write(None)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("content", [b"a b", b"a\nX-Evil: 1", b"\xff\xfe", "ä".encode()])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "p"
    path.write_bytes(content)
    with pytest.raises(GatewayError, match="position"):
        PositionFile(path).read()
    assert path.read_bytes() == content


def test_an_empty_file_is_no_position(tmp_path: Path):
    (tmp_path / "p").write_text("\n")
    assert PositionFile(tmp_path / "p").read() is None


def test_where_nothing_can_be_kept_is_told_before_anything_is_read(tmp_path: Path):
    with pytest.raises(GatewayError, match="no folder"):
        PositionFile(tmp_path / "no" / "p").read()
    with pytest.raises(GatewayError, match="no folder"):
        PositionFile(tmp_path / "no" / "p").write("1aaa")
