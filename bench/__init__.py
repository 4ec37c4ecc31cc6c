"""Measure the gateway: `make bench`, and the others of README.md.

Gateway processes, the counting proxy and brokers are those of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS_DIRECTORY = str(Path(__file__).parent.parent / "tests")
if _TESTS_DIRECTORY not in sys.path:
    sys.path.append(_TESTS_DIRECTORY)
