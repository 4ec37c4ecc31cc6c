"""From the tail to clients: channels that encode once, and clients as cursors.

A `hub` has a `shared_tail` for each set of topics; a `broadcaster` writes what its channels publish
to every `client` that is live. `shared_catch_up` reads once for clients that come back to the same
place. Start with `hub`, then `client`.
"""
