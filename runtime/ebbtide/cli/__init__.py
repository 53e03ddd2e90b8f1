"""The command line: `ebbtide up | down | status | lend | proxy | logs | doctor | version`.

    commands   what can be typed, and nothing else
    run        exit codes and errors
    up, down   start and end the local operator
    lend, proxy, status, logs, doctor   one command each
    tables, console   how things look

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from .run import main

__all__ = ["main"]
