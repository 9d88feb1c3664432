"""`python -m pullback` is `pullback`."""

from pullback.cli import main

main()
