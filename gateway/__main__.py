"""Run the `gateway` command as `python -m gateway`, for when the script is not on PATH."""

from .cli import main

main()
