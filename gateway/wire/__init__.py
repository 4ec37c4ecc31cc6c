"""The bytes of server-sent events, WebSocket messages and gzip, without I/O.

Called by `hub.wires`, which decides what is encoded. `reader` parses what WebSocket clients send.
"""
