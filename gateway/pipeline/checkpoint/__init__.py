"""Checkpoints of jobs: where they are, of which definition, how far they came.

`place` has one ready for its query. Start with `checkpoint`.
"""
