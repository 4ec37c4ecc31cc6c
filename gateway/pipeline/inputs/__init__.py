"""Inputs of jobs: a topic as a table, its values as typed columns.

`source` is the table, `fields` its columns, `parsing` and `schemas` read values. Start with
`source`.
"""
