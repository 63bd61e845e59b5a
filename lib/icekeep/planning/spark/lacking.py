"""What executors lack, from Spark's words, and what to give spark-submit so that they have it."""

import re

_MISSING_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_MISSING_ARROW = "PACKAGE_NOT_INSTALLED"
_MISSING_PYTHON = re.compile(r'Cannot run program "([^"]+)".*No such file')

GIVE_ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"
GIVE_PACKAGE = f"{GIVE_ALL}, or --py-files icekeep.zip where all other packages are installed"


def lacking(text: str) -> str | None:
    """One line for an error of work that failed since executors have no Python or no package; `None` for any other."""
    if python := _MISSING_PYTHON.search(text):
        return f"executors cannot start {python[1]!r}; {GIVE_ALL}"
    if missing := _MISSING_PACKAGE.findall(text):
        what = GIVE_PACKAGE if missing[-1] == "icekeep" else GIVE_ALL
        return f"the executors' Python has no package {missing[-1]!r}; {what}"
    if _MISSING_ARROW in text:
        return f"the executors' Python has no package 'pyarrow'; {GIVE_ALL}"
    return None
