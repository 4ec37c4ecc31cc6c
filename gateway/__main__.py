"""`python -m gateway`: the console script, where that is not on the path."""

from .cli import main

main()
