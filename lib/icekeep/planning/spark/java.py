"""Where Java is, which Spark runs on: looked for as Spark's own launcher does, and not started."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from icekeep.errors import UsageError

OLDEST_JAVA = 17
"""The oldest release that Spark 4 runs on."""


def java_program(environ: Mapping[str, str]) -> str:
    """The program that starts Java.

    Raises:
        UsageError: there is none.
    """
    home = environ.get("JAVA_HOME")
    if home:
        program = Path(home, "bin", "java")
        if not program.exists():
            raise UsageError(
                f"there is no bin/java under JAVA_HOME, {home!r}; set it to where Java {OLDEST_JAVA} or later is"
            )
        return str(program)
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"there is no Java; install Java {OLDEST_JAVA} or later, or set JAVA_HOME")
    return found
