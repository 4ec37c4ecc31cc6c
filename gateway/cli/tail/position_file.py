"""A position kept in a file, for the next start."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gateway.errors import GatewayError

_TOKEN = re.compile(r"[!-~]+")


class PositionFile:
    """The file is replaced as a whole: whoever reads it finds the old position or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: str | None = None

    def read(self) -> str | None:
        """None if there is none yet. Raises GatewayError if what is there is no position, and
        where none could be kept."""
        if not os.access(self.path.parent, os.W_OK):
            raise GatewayError(f"cannot keep a position in {self.path.parent}; it is not writable")
        try:
            text = self.path.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise GatewayError(f"cannot read the position of {self.path}: {exc}") from exc
        if text and not _TOKEN.fullmatch(text):
            raise GatewayError(f"{self.path} holds no position; name another file, or delete it")
        self._stored = text or None
        return self._stored

    def write(self, position: str | None) -> None:
        """Raises GatewayError if it cannot be written."""
        if position is None or position == self._stored:
            return
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("w") as file:
                file.write(position + "\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as exc:
            beside.unlink(missing_ok=True)
            raise GatewayError(f"cannot keep the position in {self.path}: {exc.strerror}") from exc
        self._stored = position
