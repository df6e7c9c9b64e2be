"""The `rerank` command: errors become one sentence and an exit code.

The commands themselves are in `rerank_env.commands`. Every error the library raises on purpose is one sentence on
standard error and exit code 1 (`rerank --debug COMMAND` shows where it came from); a wrong option is exit code 2, and
Ctrl-C exit code 130.
"""

from __future__ import annotations

import sys

from rerank_env.rewards.errors import RerankError


def main() -> None:
    """Run the command line."""
    try:
        from rerank_env.commands import app

        app()
    except RerankError as error:
        if sys.argv[1:2] == ["--debug"]:
            raise
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
