"""Dead letters: handed to the back end once more, read and handed in by programs."""

from .part import DeadLetterQueues

__all__ = ["DeadLetterQueues"]
