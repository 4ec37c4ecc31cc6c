"""The version of this package, apart from `gateway` itself so that any module may import it."""

__version__ = "0.1.0"
