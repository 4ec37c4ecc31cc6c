"""WebSockets: from the handshake to a session of streams.

`protocol` answers the handshake, a `connection` is the open socket, a `session` the streams of its
client and `conversation` what the client says. Start with `endpoint`.
"""
