"""Decisions without I/O: pure functions and small state machines.

Nothing here imports asyncio, opens a socket or reads a clock; callers pass the time. Follow a
record through `log`, `channel` and `client`. `group` and `delivery` are about the sidecar's
consumers.
"""
