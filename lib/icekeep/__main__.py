"""The command line: the console script `icekeep`, and `python -m icekeep` by a Python of one's choice."""

import sys

__all__ = ["entry_point"]


def entry_point() -> None:
    """Run the command that this process is."""
    try:
        from icekeep.cli import main
    except KeyboardInterrupt:
        sys.exit(interrupted_early())
    sys.exit(main())


def interrupted_early() -> int:
    """The exit status after Ctrl-C while modules are loaded, which takes a moment, before anything else begins."""
    sys.stderr.write("icekeep: interrupted before it began; nothing was changed\n")
    return 130


if __name__ == "__main__":
    entry_point()
