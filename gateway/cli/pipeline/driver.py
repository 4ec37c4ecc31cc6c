"""Run `gateway pipeline run` with this script's arguments. spark-submit runs it as the driver."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # The submitting process forwards signals to this id: see gateway.pipeline.spark.session.
    if file := os.environ.get("GATEWAY_DRIVER_PID_FILE"):
        Path(file).write_text(str(os.getpid()))
    # sys.path begins with this script's folder, whose modules (`plan`, `state`) must not become
    # top-level ones. For one import it is replaced by the folder of the package `gateway`: the
    # archive for executors is on the path as well, and data files cannot be read from a zip.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from gateway.cli import app

    del sys.path[0]
    app(["pipeline", "run", *sys.argv[1:]], prog_name="gateway")
