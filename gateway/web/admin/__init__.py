"""Serve operators: an API on a port of its own, health, metrics, and the reload.

Operators list and end streams, revoke identities, pause routes, reload the configuration and change
log levels. Every worker accepts requests on that port and asks the other workers, so that each of
them answers for all. Start with `app`; `listing` says how far a stream is in each partition.
`health` and `metrics` are served on the port of the streams, too.
"""
