"""The command `path`: where the files are that are installed with the package, for `spark-submit` and others that take a path."""

import msgspec

from icekeep.errors import UsageError
from icekeep.operations.misspelt import require_known
from icekeep.shipped import shipped_file, shipped_files

_LISTED = "`icekeep path` lists them"


class ShippedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The names that can be asked for."""

    files: tuple[str, ...]


class ShippedPath(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute path of the file that was asked for."""

    path: str


def path(*, name: str | None = None) -> ShippedFiles | ShippedPath:
    """Where the file of this name is, or the names of all.

    Raises:
        UsageError: no file of this name is shipped, or icekeep is imported from a zip, which has none of them.
    """
    files = shipped_files()
    if not files:
        raise UsageError(
            "this icekeep has no files beside its modules, as it was imported from a zip; take them from a checkout or a wheel"
        )
    if name is None:
        return ShippedFiles(files=files)
    require_known(name, files, "shipped file", _LISTED)
    return ShippedPath(path=str(shipped_file(name)))


def path_text(shown: ShippedFiles | ShippedPath) -> str:
    """The path alone, which a shell can put into a command, or a name a line."""
    lines = [shown.path] if isinstance(shown, ShippedPath) else shown.files
    return "".join(f"{line}\n" for line in lines)
