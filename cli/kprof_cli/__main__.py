"""`python -m kprof_cli`, where the console script is not on the PATH."""

from kprof_cli.main import main

main()
