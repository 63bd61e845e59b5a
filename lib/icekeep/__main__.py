"""The command line: the console script `icekeep`, and `python -m icekeep` by a Python of one's choice."""

import sys

__all__ = ["entry_point"]

_INTERRUPTED = 130


def entry_point() -> None:
    """Run the command that this process is."""
    try:
        from icekeep.cli import main
    except KeyboardInterrupt:
        # Modules take a second or so to load, before anything else begins.
        sys.stderr.write("icekeep: interrupted before it began; nothing was changed\n")
        sys.exit(_INTERRUPTED)
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
