"""Run the Spark jobs of the demo in a process of their own: `gateway pipeline run all`."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

from .component_states import ComponentStates

STOP_TIMEOUT_S = 20.0  # seconds until a process that does not end is killed


async def run_jobs(config: Path, states: ComponentStates) -> None:
    """Run the jobs until cancelled; if they end before, the page shows their last line."""
    states.report_state("Spark", "starting", "jobs begin in some 20 s")
    command = (sys.executable, "-m", "gateway", "pipeline", "run", "all", "-c", str(config))
    # In a session of its own, ^C in the terminal does not reach it: `_stop_process` ends the jobs.
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        last_line = await _follow_output(process, states)
        code = await process.wait()
        states.report_state("Spark", "failed", f"ended with status {code}: {last_line}")
        print(
            f"gateway: the jobs ended with status {code}: {last_line}", file=sys.stderr, flush=True
        )
        await asyncio.Event().wait()
    finally:
        await _stop_process(process)


async def _follow_output(process: asyncio.subprocess.Process, states: ComponentStates) -> str:
    """Print the output of the jobs; return its last line when they have ended."""
    assert process.stdout is not None
    last_line = ""
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        last_line = line or last_line
        print(f"  spark  {line}", file=sys.stderr, flush=True)
        if "batch" in line:  # the first finished batch shows that the jobs run
            states.report_state("Spark", "running", "four jobs")
    return last_line


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
