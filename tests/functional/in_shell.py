"""Run a line of Python in ``flask shell``: ``python -m tests.functional.in_shell CODE``."""

from __future__ import annotations

import io
import sys

from flask.cli import main

if __name__ == "__main__":
    code = sys.argv[1]
    sys.stdin = io.StringIO(code + "\n")
    sys.argv = ["flask", "--app", "tests.functional.supervised:create_app", "shell"]
    main()
