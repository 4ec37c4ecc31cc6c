"""Spark's jobs of the demo: a process of their own, `gateway pipeline run all`."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

from .component_states import ComponentStates

STOP_TIMEOUT_S = 20.0  # s; then it is killed


async def run_jobs(config: Path, states: ComponentStates) -> None:
    """Until cancelled; when they end by themselves, the page says with what."""
    states.report_state("Spark", "starting", "jobs begin in some 20 s")
    command = (sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(config))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        last = await _follow_output(process, states)
        code = await process.wait()
        states.report_state("Spark", "failed", f"ended with status {code}: {last}")
        print(f"gateway: the jobs ended with status {code}: {last}", file=sys.stderr, flush=True)
        await asyncio.Event().wait()
    finally:
        await _stop_process(process)


async def _follow_output(process: asyncio.subprocess.Process, states: ComponentStates) -> str:
    """Its last line, when it has ended."""
    assert process.stdout is not None
    last = ""
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        last = line or last
        print(f"  spark  {line}", file=sys.stderr, flush=True)
        if "batch" in line:
            states.report_state("Spark", "running", "four jobs")
    return last


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
