"""The `icekeep` command, to which the smallest table is too much for threads of its own: Spark's tasks rewrite it."""

from icekeep.__main__ import entry_point
from icekeep.planning.spark import session as source

source.LIMITS = source.Limits(rewrite_bytes=0, submitted_rewrite_bytes=0)

if __name__ == "__main__":
    entry_point()
