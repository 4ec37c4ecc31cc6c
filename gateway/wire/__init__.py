"""Encode server-sent events, WebSocket messages, gzip and zstd, without I/O.

`sse`, `websocket`, `gzip` and `zstd` make the bytes that many clients share, `crc` the checksums of
them. `gateway.hub.wires` calls these and decides what is encoded. `message_reader` parses the
messages of WebSocket clients, for `gateway.web.websocket`. `host` parses the field `Host` of
requests.
"""
