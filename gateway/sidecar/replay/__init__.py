"""Records of a topic once more, to a topic or to the back end."""

from .part import Replays

__all__ = ["Replays"]
