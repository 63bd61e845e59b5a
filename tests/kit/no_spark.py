"""In the place of a session, where little is to be done."""

from typing import NoReturn


def no_spark() -> NoReturn:
    """Say that Spark was started."""
    raise AssertionError("Spark was started where there is little to do")
