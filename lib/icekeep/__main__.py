"""`python -m icekeep`: the command line by a Python of one's choice."""

from icekeep.cli import entry_point

if __name__ == "__main__":
    entry_point()
