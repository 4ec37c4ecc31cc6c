"""A short schedule of cheap faults, with all that the bench has, but few clients."""

from __future__ import annotations

import pytest

from bench.faults.run import RunOptions, run_seed
from bench.faults.schedule import KINDS

CHEAP = [kind for kind in KINDS if kind.is_cheap]
SEED = 1
SECONDS = 15.0


@pytest.mark.needs("kafka")
@pytest.mark.timeout(900)
async def test_clients_get_what_is_theirs_whatever_happens(capsys):
    result = await run_seed(SEED, RunOptions(SECONDS, clients=30, kinds=CHEAP))
    assert result.is_clean, "\n".join([result.verdict, result.error, *result.findings])
    assert result.faults
    assert all(fault.status == "effective" for fault in result.faults), result.faults
    assert result.counts["deliveries"] > 1000
