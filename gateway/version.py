"""Hold the package's version, apart from `gateway` itself so that any module can import it."""

__version__ = "0.1.0"
