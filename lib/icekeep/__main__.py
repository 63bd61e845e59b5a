"""The command line: the console script `icekeep`, and `python -m icekeep` by a Python of one's choice."""

import sys

from icekeep.processes import interrupted_early

__all__ = ["entry_point"]


def entry_point() -> None:
    """Run the command that this process is."""
    try:
        from icekeep.cli import main
    except KeyboardInterrupt:
        sys.exit(interrupted_early())
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
