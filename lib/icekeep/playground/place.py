"""The directory of a playground: one maker has it to himself, and takes away what he made there where he does not finish."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from icekeep.errors import UsageError
from icekeep.events import Listener, Warned
from icekeep.runtime import interrupt_behind

CONFIG, REPORT = "icekeep.yaml", "report.html"
"""The configuration is written when all tables are made: a directory without it is no playground. The report comes last."""
DATABASE, WAREHOUSE = "catalog.db", "warehouse"

_MADE = (CONFIG, REPORT, DATABASE, f"{DATABASE}-journal", WAREHOUSE)
"""All that lies in the directory of a playground. Nothing else there is removed."""


@contextmanager
def new_place(directory: Path, listener: Listener) -> Iterator[None]:
    """Make a directory, or take an empty one; where the block fails, what a playground has there goes, and a new directory too.

    Raises:
        UsageError: the directory is something else, another playground is made there, or it cannot be written.
    """
    is_new = _taken(directory)
    try:
        yield
    except BaseException as error:
        listener.on(Warned(_free(directory, is_new)))
        interrupt = interrupt_behind(error)
        if interrupt is None or interrupt is error:
            raise
        # One that met a commit came out as an error about an unknown outcome. That does not matter now.
        raise interrupt from error


def _taken(directory: Path) -> bool:
    """Whether the directory was made. Of two who want one, he has it who makes the file of the catalog's database."""
    try:
        is_new = _made(directory)
        if not any(directory.iterdir()):
            (directory / DATABASE).touch(exist_ok=False)
            return is_new
    except FileExistsError:
        pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot make a playground in {str(directory)!r}: {reason}; name a directory that you may write to"
        ) from error
    raise UsageError(f"{str(directory)!r} is not empty; name a directory that is empty or not there")


def _made(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _free(directory: Path, is_new: bool) -> str:
    """Remove what a playground has there; returns what is to be told of it."""
    kept = [line for name in _MADE for line in _removed(directory / name)]
    told = f"the playground is not finished, so what was made of it in {str(directory)!r} is removed"
    if kept:
        return f"{told}, but for {', '.join(kept)}"
    if is_new:
        try:
            directory.rmdir()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            return f"{told}; the directory stays: {reason}"
    return told


def _removed(path: Path) -> Iterator[str]:
    """Remove a file or a directory; what stays, and why, is returned."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        yield f"{path.name!r} ({(error.strerror or str(error)).lower()})"
