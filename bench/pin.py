"""Run a command on one core, in this process: `pin.py CORE COMMAND...`."""

import os
import sys

os.sched_setaffinity(0, {int(sys.argv[1])})
os.execvp(sys.argv[2], sys.argv[2:])
