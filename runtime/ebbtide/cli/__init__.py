"""The command line: `ebbtide up | down | status | why | timeline | lend | proxy | logs | doctor | version`.

    commands   what can be typed, and nothing else
    run        exit codes and errors
    up, down   start and end the local operator
    lend, proxy, status, why, timeline, logs, doctor   one command each
    tables, lanes, picture, console   how things look

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from .run import main

__all__ = ["main"]
