"""Resume tokens: a position as text, and back.

`resume_token` writes them, `token_parser` reads what a client brings, `signing` adds a MAC where
gateways share a secret. Start with `resume_token`.
"""
