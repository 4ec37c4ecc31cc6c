"""`pin.py CORE COMMAND...`: run the command on one core, as this process."""

import os
import sys

os.sched_setaffinity(0, {int(sys.argv[1])})
os.execvp(sys.argv[2], sys.argv[2:])
