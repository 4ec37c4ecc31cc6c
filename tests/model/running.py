"""How the machine is run: by count, by time, and until a planted bug is found."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Machine

STEPS = 100  # of one run


def run(runs: int, *, number: int | None = None, shrink: bool = True) -> int:
    """Run the machine so many times and count the steps. Raises what is found, shrunk.

    number: the seed; None for the same runs each time.
    """
    before = Machine.steps
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    chosen = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        derandomize=number is None,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )

    class Run(Machine):
        """hypothesis keeps the seed of a class, so each run has its own."""

    run_state_machine_as_test(Run if number is None else seed(number)(Run), settings=chosen)
    return Machine.steps - before


def any_seed() -> int:
    return random.SystemRandom().randrange(1 << 32)
