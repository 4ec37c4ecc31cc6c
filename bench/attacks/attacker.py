"""Run one attack within limits: `python -m bench.attacks.attacker NAME TARGET`.

TARGET is JSON with the members of `attack.Target`. The process prints `ready` and waits for a line
on stdin. It prints `begun` when the attack has started, and a JSON object of its counts at the end.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from .attack import Target
from .catalog import ATTACKS

MAX_ADDRESS_SPACE_BYTES = 6 << 30  # bytes of address space
MAX_CPU_S = 120  # s
NICENESS = 10  # so that the prober, on the same core, is not kept waiting


def main() -> None:
    """Attack, and print what was counted."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE_BYTES, MAX_ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(NICENESS)
    name, told = sys.argv[1:]
    run, target = ATTACKS[name].run, Target(**json.loads(told))
    print("ready", flush=True)
    if sys.stdin.readline():
        print(json.dumps(dict(run(target))), flush=True)


if __name__ == "__main__":
    main()
