"""How long properties of hostile input are tried: `make fuzz` says so by the environment.

By day each parser has to take or refuse what comes. What that costs is measured by `make fuzz` and
by night (GATEWAY_HYPOTHESIS_PROFILE=night), where nobody waits for another try on a busy machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import settings

FUZZ_SECONDS = float(os.environ.get("GATEWAY_FUZZ_SECONDS", 0))
"""For each property; 0 for a short run."""
MEASURES_COST = bool(FUZZ_SECONDS) or os.environ.get("GATEWAY_HYPOTHESIS_PROFILE") == "night"


def run_for_duration(test: Callable[..., None]) -> Callable[..., None]:
    """Try a property for a while: with few examples, or again and again until time is over."""
    if not FUZZ_SECONDS:
        return test
    tried = settings(max_examples=1000)(test)

    @wraps(tried)
    def repeat_test(*args: Any, **options: Any) -> None:
        until = time.monotonic() + FUZZ_SECONDS
        while time.monotonic() < until:
            tried(*args, **options)

    return repeat_test
