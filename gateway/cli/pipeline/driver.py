"""What spark-submit runs: `gateway pipeline run` with the arguments behind it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The folder of this file is the first to be looked in; its names are not for others.
    here = __file__.rpartition("/")[0]
    sys.path[:] = [each for each in sys.path if each != here]
    from gateway.cli import app

    app(["pipeline", "run", *sys.argv[1:]], prog_name="gateway")
