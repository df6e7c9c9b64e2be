"""The `rerank` command: errors become one sentence and an exit code.

The commands themselves are in `rerank_env.commands`. Every error the library raises on purpose is one sentence on
standard error and exit code 2, as a wrong option is (`rerank --debug COMMAND` shows where it came from); Ctrl-C is exit
code 130. What else a command has to say with its exit code is in its help.
"""

from __future__ import annotations

import sys
import traceback

from rerank_env.rewards.errors import RerankError

ERROR = 2
"""The exit code of a mistake, whoever found it."""


def main() -> None:
    """Run the command line."""
    try:
        from rerank_env.commands import app

        app()
    except RerankError as error:
        if sys.argv[1:2] == ["--debug"]:
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(ERROR)


if __name__ == "__main__":
    main()
