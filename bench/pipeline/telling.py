"""What is being done, on stderr: measurements of minutes must not look as if they hung."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def tell(text: str) -> None:
    """With the seconds since the start of the process."""
    print(f"{time.monotonic() - _BEGAN:6.1f}  {text}", file=sys.stderr, flush=True)
