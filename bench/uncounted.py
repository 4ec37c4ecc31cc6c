"""The gateway with its counting taken out: `python -m bench.uncounted run -c FILE`.

What clients get, how late and of how many bytes is not counted; nothing else is changed. What is
left in of it: the timestamp that goes along with each event.
"""

from __future__ import annotations

import runpy
from typing import Any

from gateway.core.client.shared_cursor import Ride
from gateway.hub.fanout.broadcaster import Fan
from gateway.telemetry.tallies import Requests
from gateway.telemetry.traffic import Traffic


def nothing(*_: Any, **__: Any) -> None: ...


def main() -> None:
    Traffic.sent = Traffic.told = nothing  # type: ignore[method-assign, assignment]
    Fan._note = Fan.settle = nothing  # type: ignore[method-assign, assignment]
    Ride.note = nothing  # type: ignore[method-assign, assignment]
    Requests.answered = nothing  # type: ignore[method-assign, assignment]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
