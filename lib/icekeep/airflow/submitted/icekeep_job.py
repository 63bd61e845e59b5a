"""Any command of icekeep as an application of spark-submit: spark-submit icekeep_job.py COMMAND --table NS.NAME ...

It stands alone in its directory, which Spark and Python put before all others of the path.
"""

import sys

from icekeep.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
