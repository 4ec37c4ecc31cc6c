"""Streams for programs in Python: records as objects, by the same reads as all other clients."""
