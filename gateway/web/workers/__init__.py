"""Let the processes that share a port talk to each other.

They talk over the `bus`, whose side in the supervisor is the `relay`; with one worker the same
`Bus` works without a socket. What they share by it is counted or logged once (`outage_log`). Ports
are bound in `sockets`, or were bound before by systemd. Start with `bus`.
"""
