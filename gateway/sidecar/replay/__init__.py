"""Records of a topic once more, to a topic or to the back end."""

from .component import ReplayComponent

__all__ = ["ReplayComponent"]
