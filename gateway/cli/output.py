"""Write what commands print and keep: safe for a terminal, in columns, and files as a whole.

Anyone may have written a record. Control characters can make a terminal hide text, send input or
change its title, and bidirectional marks reorder text. Both are replaced by JSON's escapes, so that
JSON stays JSON.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gateway.errors import GatewayError

_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_JSON_TOKEN = re.compile(
    r'(?P<key>"(?:\\.|[^"\\])*")(?=\s*:)|(?P<text>"(?:\\.|[^"\\])*")'
    r"|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)"
)

Colours = Mapping[str, str]
"""The SGR parameters of ECMA-48, by tone."""

COLOURS: Colours = {
    "key": "34",
    "text": "32",
    "number": "36",
    "word": "35",
    "time": "2",
    "place": "33",
    "dim": "2",
    "good": "32",
    "warn": "33",
    "bad": "31",
}
NO_COLOURS: Colours = {}


def escape_controls(text: str, allowed: str = "") -> str:
    return _CONTROL_CHARACTERS.sub(
        lambda m: m[0] if m[0] in allowed else f"\\u{ord(m[0]):04x}", text
    )


def format_value(value: Any) -> str:
    """Return a text, or another value as JSON, that anyone may have written."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape_controls(text)


def paint(text: str, tone: str, colours: Colours) -> str:
    code = colours.get(tone)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def paint_json(text: str, colours: Colours) -> str:
    """Return JSON whose names, strings, numbers and words have colours. It must be escaped."""
    if not colours:
        return text
    return _JSON_TOKEN.sub(lambda m: paint(m[0], m.lastgroup or "", colours), text)


def select_colours(stream: IO[Any], environ: Mapping[str, str] = os.environ) -> Colours:
    """Return the colours of an output; none without a terminal, or with NO_COLOR (no-color.org)."""
    wanted = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return COLOURS if wanted else NO_COLOURS


def format_count(number: float, noun: str) -> str:
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


MAX_LISTED = 8  # partitions, streams or topics that one line names


def format_list(items: Iterable[str]) -> str:
    """Return items separated by commas; the number of those above `MAX_LISTED`."""
    found = list(items)
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return ", ".join(found[:MAX_LISTED] + more)


def format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


@contextmanager
def show_progress() -> Iterator[Callable[[float, float | None, str], None]]:
    """Show a bar on stderr, if that is a terminal.

    It yields a function of what is done, of all there is to do (None if that is not known), and a
    text.
    """
    if not sys.stderr.isatty():
        yield lambda completed, total, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda completed, total, text: bar.update(
            task, completed=completed, total=total, description=text
        )


def require_writable(file: Path, *, is_new: bool = False) -> None:
    """Check that a file can be written, before there is something to write; or is not there yet."""
    if is_new and file.exists():
        raise GatewayError(f"{file} exists; write another file, or replace it by --force")
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
    with suppress(OSError):
        if not _is_special(file.resolve()):
            file.unlink()


def _is_special(file: Path) -> bool:
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
