"""Serve the API of operators on a port of its own.

Operators list and end streams, revoke identities, pause routes, reload the configuration and change
log levels. Every worker accepts requests on that port and asks the other workers, so that each of
them answers for all. `http.edge` serves it. Start with `app`; `listing` says how far a stream is in
each partition.
"""
