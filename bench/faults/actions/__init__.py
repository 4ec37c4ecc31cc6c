"""The faults: each one happens, waits until it has taken effect, and is healed in the end.

They are in `broker`, `log`, `network` and `process`, by where they happen; `effects` has what they
share.
"""
