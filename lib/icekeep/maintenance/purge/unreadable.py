"""The job `drop` on a table whose metadata does not load: what its command calls in place of `drop_table` and `plan_drop_table`.

The catalog forgets the name. Which files are the table's own nobody knows then, so that none is deleted, and a purge is refused.
"""

from typing import Any, NamedTuple

from icekeep.catalog.base import Catalog, Identifier, Pointer, format_identifier
from icekeep.errors import ConflictError, IcekeepError, InvalidTableError, SafetyError
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
        ConflictError: the metadata loads again, or the catalog names other metadata by now; nothing is dropped.
        NotFoundError: the catalog has no such table.
        UsageError, OptionError: as `drop_table`.
        OutcomeUnknownError: the catalog may or may not have forgotten it.
    """
    began_ms = catalog.runtime.monotonic_ms()
    request, pointer = _asked(catalog, identifier, error, arguments)
    meant = None if pointer is None else pointer.metadata_location
    # The very file that cannot be read is compared with: it says no uuid.
    location = catalog.drop(identifier, metadata_location=meant) or meant
    left = _left(catalog.storage if pointer is None else pointer.storage, location)
    request.listener.on(Warned(_said(identifier, "is dropped", error, left)))
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
    request.listener.on(Warned(_said(identifier, "would be dropped", error, left)))
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
    """The arguments, which hold, and where the catalog says that the metadata is; `None` where it says nothing."""
    request = DropRequest(**arguments)
    checked_arguments(request)
    try:
        pointer = catalog.find(identifier)
    except InvalidTableError:
        pointer = None
    _refuse_readable(catalog, identifier)
    if request.purge:
        left = _Left() if pointer is None else _left(pointer.storage, pointer.metadata_location)
        way = f"; to delete what {left.sound[0]!r} names, register that then, and purge it" if left.sound else ""
        raise SafetyError(
            f"{format_identifier(identifier)!r} is not purged: {error.message}, and nothing else says which files are the "
            "table's own; nothing is dropped or deleted; drop it without a purge, which takes the name out of the catalog and "
            f"keeps every file{way}",
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
        "somebody repaired it, or made it anew; nothing is dropped; look at it, and drop it again",
        table=format_identifier(identifier),
        metadata_location=table.metadata_location,
    )


def _left(storage: Storage, location: str | None) -> _Left:
    """Metadata files before one that cannot be read; what cannot be looked at is not told, since the table may be dropped."""
    if not location:
        return _Left()
    try:
        sound = [one.location for one in last_sound(storage, location, None)]
    except IcekeepError:
        sound = []
    return _Left((location,), tuple(sound))


def _said(identifier: Identifier, done: str, error: InvalidTableError, left: _Left) -> str:
    if left.sound:
        rest = f"`icekeep register` takes the table back, as it was before, by {left.sound[0]!r}"
    elif left.unreadable:
        rest = f"no sound metadata file lies in {left.unreadable[0].rpartition('/')[0]!r}"
    else:
        rest = "nor where they lie"
    return (
        f"table {format_identifier(identifier)!r} {done}, although its metadata does not load ({error.message}): which files are "
        f"its own is not known, and all of them stay; {rest}"
    )
