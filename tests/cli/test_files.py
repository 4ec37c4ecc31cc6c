"""Files of commands are replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gateway.cli.output import remove_file, replace_file
from gateway.errors import GatewayError


def test_a_file_is_created_and_replaced_and_nothing_else_stays(tmp_path: Path):
    file = tmp_path / "a"
    replace_file(file, "one")
    os.chmod(file, 0o640)
    replace_file(file, "two")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("two", 0o640)
    assert list(tmp_path.iterdir()) == [file]
    remove_file(file)
    remove_file(file)
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path):
    (tmp_path / "a").touch()
    replace_file(tmp_path / "b", "text")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    """The file was emptied before the new text was written."""
    file = tmp_path / "a"
    replace_file(file, "old")
    with pytest.raises(UnicodeEncodeError):
        replace_file(file, "new \ud800")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays_one(tmp_path: Path):
    (tmp_path / "link").symlink_to("file")
    replace_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path):
    """`--position /dev/null` replaced the device by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(pipe, "text")
        remove_file(pipe)
        assert os.read(reader, 100) == b"text"
        assert list(tmp_path.iterdir()) == [pipe]
    finally:
        os.close(reader)


def test_a_folder_and_a_missing_folder_are_said(tmp_path: Path):
    with pytest.raises(GatewayError, match="is a folder"):
        replace_file(tmp_path, "text")
    with pytest.raises(GatewayError, match="no folder"):
        replace_file(tmp_path / "none" / "a", "text")
