"""The part `ksqldb`: queries for clients, and configured ones whose rows reach the back end."""

from .ksqldb import KsqlDb

__all__ = ["KsqlDb"]
