"""The heart, without I/O: pure functions and small state machines.

Nothing here knows asyncio, a socket or a clock; time is an argument.
"""
