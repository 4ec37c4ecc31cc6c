"""The reactive consumer: batches of a group's records are POSTed to a back end."""

from .part import Reactive

__all__ = ["Reactive"]
