"""What is measured, and how it is kept: `python -m bench.figures`.

The means of proof (gateway processes, the counting proxy, brokers) are those of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS_DIRECTORY = str(Path(__file__).parent.parent / "tests")
if _TESTS_DIRECTORY not in sys.path:
    sys.path.append(_TESTS_DIRECTORY)
