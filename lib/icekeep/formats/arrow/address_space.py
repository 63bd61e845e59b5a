"""Which allocator Arrow has in a process whose address space is limited; nothing here imports Arrow."""

import resource

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable, which it looks at while it is loaded: where an operator has set it, that holds."""

LIMITED_POOL = "system"
"""C's own allocator, which gives back what it is given back. What the others keep for later, or ask for beforehand, counts by
such a limit too."""


def is_limited() -> bool:
    """Whether the address space of this process is limited (`ulimit -v`, in Spark's workers `spark.executor.pyspark.memory`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return limit != resource.RLIM_INFINITY
