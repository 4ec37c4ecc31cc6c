"""Dead letters: handed to the back end once more, read and handed in by programs."""

from .component import DeadLetterComponent

__all__ = ["DeadLetterComponent"]
