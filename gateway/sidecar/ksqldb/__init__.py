"""The part `ksqldb`: queries for clients, and configured ones whose rows reach the back end."""

from .component import KsqldbComponent

__all__ = ["KsqldbComponent"]
