"""How the machine is run: from one seed after the other, a few runs each.

Many seeds with few runs reach further than one with many: within a seed, hypothesis varies
what it has.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from .machine import Machine

RUNS_PER_SEED = 40  # from one seed
STEPS_PER_RUN = 200  # of one run


def run_seed(number: int, *, runs: int = RUNS_PER_SEED, shrink: bool = True) -> int:
    """Run the machine from a seed and count its steps. Raises what is found, shrunk."""
    before = Machine.steps
    chosen = settings(
        max_examples=runs,
        stateful_step_count=STEPS_PER_RUN,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )

    class Run(Machine):
        """hypothesis keeps the seed with the class."""

    run_state_machine_as_test(seed(number)(Run), settings=chosen)
    return Machine.steps - before


def draw_seed() -> int:
    return random.SystemRandom().randrange(1 << 32)
