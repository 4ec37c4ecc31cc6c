"""Keep a position in a file, for the next start."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.cli.files import replace_file, require_writable
from gateway.errors import GatewayError

_TOKEN = re.compile(r"[!-~]+")


class PositionFile:
    """The file of a position. It is replaced as a whole, so it always has a complete position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: str | None = None

    def read(self) -> str | None:
        require_writable(self.path)
        try:
            text = self.path.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise GatewayError(f"cannot read the position in {self.path}: {exc}") from exc
        if text and not _TOKEN.fullmatch(text):
            raise GatewayError(
                f"{self.path} does not hold a position; name another file, or delete it"
            )
        self._stored = text or None
        return self._stored

    def write(self, position: str | None) -> None:
        if position is None or position == self._stored:
            return
        replace_file(self.path, f"{position}\n")
        self._stored = position
