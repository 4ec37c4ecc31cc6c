"""The reactive consumer: batches of a group's records are POSTed to a back end."""

from .component import ReactiveComponent

__all__ = ["ReactiveComponent"]
