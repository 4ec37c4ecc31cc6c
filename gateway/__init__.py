"""Kafka to the browser: a streaming gateway over Apache Kafka."""

__version__ = "0.1.0"
