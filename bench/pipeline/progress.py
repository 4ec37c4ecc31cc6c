"""Print what is being done to stderr, because measurements take minutes."""

from __future__ import annotations

import sys
import time

_STARTED_AT = time.monotonic()


def print_progress(text: str) -> None:
    """With the seconds since the start of the process."""
    print(f"{time.monotonic() - _STARTED_AT:6.1f}  {text}", file=sys.stderr, flush=True)
