"""The job `drop` on a table whose metadata does not load: what its command calls in place of `drop_table` and `plan_drop_table`.

The catalog forgets the name. Only metadata says which files are the table's own, so none is deleted, and a purge is refused.
"""

from shlex import quote
from typing import Any, NamedTuple

from icekeep.catalog.base import Catalog, Identifier, Pointer, format_identifier
from icekeep.errors import ConflictError, IcekeepError, InvalidTableError, SafetyError, argument
from icekeep.events import Warned
from icekeep.maintenance.checking.metadata.earlier import last_sound
from icekeep.maintenance.purge.job import DropPlan, DropRequest, DropResult, checked_arguments
from icekeep.runs import Run
from icekeep.storage.base import Storage


def drop_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> DropResult:
    """Let the catalog forget a table whose metadata file is gone or damaged; no file is deleted.

    Args:
        error: what its catalog raised.
        run: which run it is; nothing is written below its name.
        arguments: those of `drop_table`.

    Raises:
        SafetyError: a purge is asked for; nothing is dropped.
        ConflictError: the metadata loads again, or the catalog names other metadata now; nothing is dropped.
        NotFoundError: the catalog has no such table.
        UsageError, OptionError: as `drop_table`.
        OutcomeUnknownError: the catalog may or may not have forgotten it.
    """
    began_ms = catalog.runtime.monotonic_ms()
    request, pointer = _asked(catalog, identifier, error, arguments)
    meant = None if pointer is None else pointer.metadata_location
    # There is no uuid to compare where the file cannot be read: its location says that it is still this table.
    location = catalog.drop(identifier, metadata_location=meant) or meant
    left = _left(catalog.storage if pointer is None else pointer.storage, location)
    back = "run `icekeep register --table NAME --metadata-location {}` to take it back as it was then"
    request.listener.on(Warned(_warning(identifier, "is dropped", error, left, back)))
    return DropResult(
        unreadable_files=left.unreadable,
        sound_metadata=left.sound,
        metadata_location=location,
        elapsed_ms=catalog.runtime.monotonic_ms() - began_ms,
        run_id=None if run is None else run.run_id,
    )


def plan_drop_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> DropPlan:
    """Say what `drop_unreadable` would do; raises what it raises before it drops."""
    request, pointer = _asked(catalog, identifier, error, arguments)
    left = _Left() if pointer is None else _left(pointer.storage, pointer.metadata_location)
    back = "the newest sound metadata file is {}"
    request.listener.on(Warned(_warning(identifier, "would be dropped", error, left, back)))
    return DropPlan(is_purged=False, unreadable_files=left.unreadable, sound_metadata=left.sound)


class _Left(NamedTuple):
    """What is left of a table, as far as it is known.

    Attributes:
        unreadable: its metadata file, where the catalog names one.
        sound: metadata files before that one, the newest first.
    """

    unreadable: tuple[str, ...] = ()
    sound: tuple[str, ...] = ()


def _asked(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, arguments: dict[str, Any]
) -> tuple[DropRequest, Pointer | None]:
    """The checked arguments, and where the catalog says that the metadata is; `None` where it does not say it."""
    request = DropRequest(**arguments)
    checked_arguments(request)
    try:
        pointer = catalog.find(identifier)
    except InvalidTableError:
        pointer = None
    _refuse_readable(catalog, identifier)
    if request.purge:
        left = _Left() if pointer is None else _left(pointer.storage, pointer.metadata_location)
        more = (
            "; to delete the files that earlier metadata names, register the sound metadata file that this drop prints, and "
            "purge the table then"
        )
        raise SafetyError(
            f"table {format_identifier(identifier)!r} is not purged: its metadata does not load ({error.message}), and only "
            f"metadata says which files are its own; nothing is dropped or deleted; drop it without {argument('purge')}, which "
            f"takes its name out of the catalog and keeps all files{more if left.sound else ''}",
            **error.facts,
        )
    return request, pointer


def _refuse_readable(catalog: Catalog, identifier: Identifier) -> None:
    """Raise `ConflictError` where the metadata loads: another file than the one that did not, or that file, which is back.

    Whoever drops compares with the pointer that was found before.
    """
    try:
        table = catalog.load(identifier)
    except InvalidTableError:
        return
    raise ConflictError(
        f"the metadata of table {format_identifier(identifier)!r} did not load, and loads now, from {table.metadata_location!r}: "
        "somebody repaired it, or created it again; nothing is dropped; look at it, and drop it again",
        table=format_identifier(identifier),
        metadata_location=table.metadata_location,
    )


def _left(storage: Storage, location: str | None) -> _Left:
    """What is left of a table whose metadata file cannot be read; no sound file is named where storage cannot be searched."""
    if not location:
        return _Left()
    try:
        sound = [one.location for one in last_sound(storage, location, None)]
    except IcekeepError:
        sound = []
    return _Left((location,), tuple(sound))


def _warning(identifier: Identifier, done: str, error: InvalidTableError, left: _Left, back: str) -> str:
    """What the operator is warned of; `back` has `{}` where the newest sound metadata file is named."""
    if left.sound:
        rest = back.format(quote(left.sound[0]))
    elif left.unreadable:
        rest = f"no sound metadata file was found in {left.unreadable[0].rpartition('/')[0]!r}"
    else:
        rest = "the catalog does not say where they are"
    return (
        f"table {format_identifier(identifier)!r} {done}, although its metadata does not load ({error.message}): no metadata "
        f"says which files are its own, so all of them stay; {rest}"
    )
