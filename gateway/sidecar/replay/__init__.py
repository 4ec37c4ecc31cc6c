"""Replay records of a topic, to another topic or to a back end.

Start with `component`, which has the routes and distributes replays over the sidecars. A `job`
works on one replay, and `store` keeps the state of all replays in a topic and shows it as JSON.
`core.delivery.replay` defines a replay.
"""

from .component import ReplayComponent

__all__ = ["ReplayComponent"]
