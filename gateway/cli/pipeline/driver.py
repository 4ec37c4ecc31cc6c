"""What spark-submit runs: `gateway pipeline run` with the arguments behind it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Our parent passes signals on to us: see gateway.pipeline.spark.submit (not imported yet).
    if file := os.environ.get("GATEWAY_DRIVER_PID_FILE"):
        Path(file).write_text(str(os.getpid()))
    # The folder of this file is the first to be looked in; its names are not for others. For a
    # moment that of the whole package takes its place: the archive for executors is on the path,
    # too, and holds files that can be read only where they are files.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from gateway.cli import app

    del sys.path[0]
    app(["pipeline", "run", *sys.argv[1:]], prog_name="gateway")
