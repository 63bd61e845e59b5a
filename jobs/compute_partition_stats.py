"""Count a table by partition: spark-submit jobs/compute_partition_stats.py --table NS.NAME (--help says more)."""

import sys
from pathlib import Path

# In a checkout the package is next door; where it is installed this directory does not exist.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from icekeep.cli import main

if __name__ == "__main__":
    sys.exit(main(job="compute_partition_stats"))
