"""What Spark tells of work that failed on its executors, as one line; where these lack something, the line says what to do."""

import re

_MISSING_PACKAGE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_MISSING_ARROW = "PACKAGE_NOT_INSTALLED"
_MISSING_PYTHON = re.compile(r'Cannot run program "([^"]+)".*No such file')
_PYTHON_ERROR = re.compile(r"\w+(Error|Exception): ")

_GIVE_ALL = "give spark-submit --archives icekeep-env.tar.gz#env --conf spark.pyspark.python=./env/bin/python"
_GIVE_PACKAGE = f"{_GIVE_ALL}, or --py-files icekeep.zip where all other packages are installed"


def line_of(error: Exception) -> str:
    """The line of an error that says most: what executors lack, else the last Python error in it, else its first line."""
    text = str(error)
    if python := _MISSING_PYTHON.search(text):
        return f"executors cannot start {python[1]!r}; {_GIVE_ALL}"
    if missing := _MISSING_PACKAGE.findall(text):
        what = _GIVE_PACKAGE if missing[-1] == "icekeep" else _GIVE_ALL
        return f"the executors' Python has no package {missing[-1]!r}; {what}"
    if _MISSING_ARROW in text:
        return f"the executors' Python has no package 'pyarrow'; {_GIVE_ALL}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _PYTHON_ERROR.match(line)), lines[0] if lines else repr(error))
