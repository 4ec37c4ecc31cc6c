"""The admin API: list the streams that run and end them, on a port of its own.

Every worker accepts requests on that port and asks the other workers, so that any of them answers
for all. Start with `app`.
"""
