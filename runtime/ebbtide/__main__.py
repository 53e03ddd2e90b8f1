"""`python -m ebbtide`: the command line."""

from .cli import main

main()
