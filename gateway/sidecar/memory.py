"""Memory that is free, given back to the system."""

from __future__ import annotations

import ctypes
import logging
import sys

log = logging.getLogger(__name__)


def trim_memory() -> None:
    """glibc keeps what was freed for the next who wants some, unless it is told; elsewhere nothing
    is done. 1,000 consumer instances that were gone: 7 of 26 MB, in some milliseconds."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library
        log.debug("free memory cannot be given back")
