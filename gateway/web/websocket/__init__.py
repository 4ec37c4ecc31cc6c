"""WebSockets, from the handshake to a session with several streams.

`protocol` answers the handshake of our own server, and `connection` is the open socket. `endpoint`
is the application side: it admits a client and gives the socket to a `session`, which has the
client's streams (`stream`) and, as a `message_processor`, what it says and writes.
Start reading with `endpoint`, which `web/streams/middleware.py` calls.
"""
