"""`python -m pullback.cli` is `pullback`."""

from pullback.cli import main

main()
