"""Write the files of commands, so that each has all of its old or all of its new content."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from gateway.errors import GatewayError


def require_writable(file: Path) -> None:
    """Check that a file can be written, before there is something to write."""
    target = file.resolve()
    folder = target.parent
    if target.is_dir():
        raise GatewayError(f"cannot write {file}: it is a folder; name a file")
    if not folder.is_dir():
        raise GatewayError(f"cannot write {file}: there is no folder {folder}; make it first")
    if not os.access(target if _is_special(target) else folder, os.W_OK):
        raise GatewayError(f"cannot write {file}: {folder} is not writable; check its permissions")


def replace_file(file: Path, text: str) -> None:
    """Write a file as a whole: if that fails, its old content stays.

    A link and the permissions stay. A device, such as a terminal, is written to and not replaced.
    """
    require_writable(file)
    target = file.resolve()
    try:
        if _is_special(target):
            with target.open("w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            _replace_regular_file(target, text)
    except OSError as exc:
        raise GatewayError(f"cannot write {file}: {exc.strerror}; check the path") from exc


def remove_file(file: Path) -> None:
    """Remove a file that a command has written, if it is a regular one."""
    with suppress(OSError):
        if not _is_special(file.resolve()):
            file.unlink()


def _is_special(file: Path) -> bool:
    """Return whether a path is a device, a pipe or the like."""
    return file.exists() and not file.is_file()


def _replace_regular_file(file: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_choose_mode(file))
        temporary.replace(file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _choose_mode(file: Path) -> int:
    with suppress(FileNotFoundError):
        return stat.S_IMODE(file.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
