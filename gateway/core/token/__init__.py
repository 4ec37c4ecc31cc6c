"""Write a position as text, the resume token, and read it back.

Start with `resume_token`, which has the format and writes it. `token_parser` has the digits of its
numbers, reads what a client brings and says where it is damaged. `signing` adds a MAC where
gateways share a secret.
"""
