"""Where the other tables of a catalog lie, and those of other catalogs in the same database.

    catalog -> names -> pointers -> locations

Only locations are read out of the others' metadata: a table of a version that is not known here has its location all the same.
Of a table that cannot be loaded the catalog may tell the location.

One look at a catalog serves the jobs of many of its tables: for 500 tables it is 500 pointers, and not 500 times 500. Names are
listed for each job, as a table may have been registered a moment ago; what is shared is where those lie that were there before.
A job by itself looks at its neighbours when it begins, and may list a large one for longer than `LOOK_MS` before it deletes: what
such a look may miss, one that is shared may miss too, and no more. Catalogs that tell all pointers at once (`catalog/base.py`)
list names in one request, and metadata that is known already is taken as it is now.

A job that deletes nothing but what the table's own snapshots named goes by a look of the last day, where looks are kept with the
record of runs (`LookRecord`) and the catalog lists all pointers at once: a table whose pointer is the one that was looked at
then is where it was. Any other is looked at again. A job that judges files by a listing, and one that deletes a whole table,
always look.
"""

import logging
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol, TypeVar

import msgspec

from icekeep.catalog.base import (
    Catalog,
    Identifier,
    NamespacesMissingError,
    Pointer,
    Table,
    format_identifier,
)
from icekeep.catalog.wrappers import lists_pointers
from icekeep.decoding import from_json
from icekeep.errors import (
    ConfigError,
    IcekeepError,
    NotFoundError,
    TryAgainError,
    first_line,
    one_line,
)
from icekeep.maintenance.delete.locations import (
    Neighbour,
    TableLocations,
    known_neighbour,
    look_at,
    look_by,
)
from icekeep.runtime import Runtime
from icekeep.spec.types import MINUTE_MS
from icekeep.storage.base import REQUESTS_AT_ONCE, answer_each

_LOG = logging.getLogger(__name__)


LOOK_MS = 5 * MINUTE_MS
"""A look that is older is made again."""


FRESH_MS = MINUTE_MS
"""The same for a job that takes for garbage what lies in a place and no metadata names."""


class LookRecord(Protocol):
    """Keeps looks at catalogs from process to process; an error of it only means that the catalog is asked."""

    def last_look(self, catalog: str) -> tuple[int, bytes] | None:
        """When the last look at a catalog began that is kept, epoch milliseconds, and what it found."""

    def keep_look(self, catalog: str, at_ms: int, found: bytes) -> None:
        """Keep a look in place of the one before."""


class SharedLooks:
    """The looks of one run, for several threads; of those who ask at once one looks, and the others wait for it."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[int, tuple[Neighbour, ...]]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(
        self, key: str, runtime: Runtime, look: Callable[[], tuple[Neighbour, ...] | None], max_age_ms: int = LOOK_MS
    ) -> tuple[Neighbour, ...] | None:
        """Where each table lies by a look that is at most `max_age_ms` old, or by one that is made now.

        `None` where `look` says that not all could be seen.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            now_ms = runtime.monotonic_ms()
            at_ms, known = self._looks.get(key, (0, None))
            if known is not None and now_ms - at_ms < max_age_ms:
                return known
            # Dated by its beginning.
            found = look()
            if found is not None:
                self._looks[key] = now_ms, found
            return found


_SHARED: ContextVar[SharedLooks | None] = ContextVar("shared_looks", default=None)


_RECORD: ContextVar[LookRecord | None] = ContextVar("look_record", default=None)


@contextmanager
def sharing(looks: SharedLooks) -> Iterator[None]:
    """Let the jobs that this thread runs while the block lasts share looks."""
    token = _SHARED.set(looks)
    try:
        yield
    finally:
        _SHARED.reset(token)


@contextmanager
def recording_looks(record: LookRecord | None) -> Iterator[None]:
    """Let the job that this thread runs while the block lasts write down its looks, and go by those that are written down."""
    token = _RECORD.set(record)
    try:
        yield
    finally:
        _RECORD.reset(token)


T = TypeVar("T")


R = TypeVar("R")


_REQUESTS_EACH = 4
"""A thread may need a connection of its own, which fewer requests are not worth."""


_FAILED_BESIDE: set[tuple[str, str]] = set()
"""Catalogs by name, and metadata files of other catalogs' tables that their storage could not read."""


def all_tables(
    table: Table, max_age_ms: int, *, is_listed: bool
) -> tuple[Collection[Identifier], str, list[Neighbour]]:
    """The names of all tables of a table's catalog, why not all are known, and where the others lie.

    Tables of other catalogs in the same database are among the others.

    Args:
        max_age_ms: of a look that is shared, or written down.
        is_listed: whether the catalog has the table itself.
    """
    shared = _shared(table, max_age_ms) if is_listed else None
    identifiers, unlisted_reason, listed = shared or _read(table, is_listed=is_listed)
    return identifiers, unlisted_reason, [*listed, *_beside(table.catalog)]


class _Listed(msgspec.Struct, frozen=True):
    """All tables of a catalog by name, with their pointers where it tells them at once; and why not all could be listed."""

    pointers: Mapping[Identifier, Pointer | None]
    unlisted_reason: str = ""


def _read(table: Table, *, is_listed: bool) -> tuple[Collection[Identifier], str, list[Neighbour]]:
    """The names of all tables of the catalog, why not all could be listed, and where the others lie."""
    listed = _all_tables(table.catalog, {table.identifier[:-1]})
    identifiers, unlisted_reason = listed.pointers.keys(), listed.unlisted_reason
    if is_listed and not unlisted_reason and folded(table.identifier) not in map(folded, identifiers):
        unlisted_reason = f"catalog {table.catalog.name!r} does not list the table itself, so it may not list others"
    others = {name: pointer for name, pointer in listed.pointers.items() if name != table.identifier}
    return identifiers, unlisted_reason, _looked_at(table.catalog, others)


def _shared(table: Table, max_age_ms: int) -> tuple[Collection[Identifier], str, list[Neighbour]] | None:
    """The same from a look that the jobs of a run share, or that was written down.

    `None` where there is none, or it has not seen all, or not this table. Tables whose names are new since the look are looked
    at, and so are those that have moved on, where their new metadata is known.
    """
    looks, catalog = _SHARED.get(), table.catalog
    # A name alone proves nothing after a day: its table may have been dropped, and another registered under it.
    record = None if lists_pointers(catalog) is None else _RECORD.get()
    by_record = record is not None and max_age_ms > LOOK_MS
    if looks is None and not by_record:
        return None
    looks, runtime = looks or SharedLooks(), catalog.runtime

    def look() -> tuple[Neighbour, ...] | None:
        began_ms = runtime.now_ms()
        listed = _all_tables(catalog, set())
        if listed.unlisted_reason:
            return None
        found = tuple(_looked_at(catalog, listed.pointers))
        if record is not None:
            _write_down(record, catalog, began_ms, found)
        return found

    def written_down() -> tuple[Neighbour, ...] | None:
        assert record is not None
        known = _read_down(record, catalog, max_age_ms)
        return known if known is not None else looks.of(catalog.identity, runtime, look)

    if by_record:
        # What is written down may be a day old: it is kept apart from looks that others ask for.
        found = looks.of(f"{catalog.identity} by the record", runtime, written_down)
    else:
        found = looks.of(catalog.identity, runtime, look, min(max_age_ms, LOOK_MS))
    listed = None if found is None else _all_tables(catalog, set())
    if found is None or listed is None or listed.unlisted_reason or table.identifier not in listed.pointers:
        return None
    known = {n.identifier: n for n in found}
    if by_record:
        current = {name: pointer and pointer.metadata_location for name, pointer in listed.pointers.items()}
        known = {name: n for name, n in known.items() if current.get(name) == n.metadata_location}
    new = _looked_at(catalog, {name: pointer for name, pointer in listed.pointers.items() if name not in known})
    old = {name: pointer for name, pointer in listed.pointers.items() if name in known}
    moved_on = {name: None if pointer is None else known_neighbour(name, pointer) for name, pointer in old.items()}
    neighbours = [*(moved_on[name] or known[name] for name in old), *new]
    return listed.pointers.keys(), "", [n for n in neighbours if n.identifier != table.identifier]


def _write_down(record: LookRecord, catalog: Catalog, at_ms: int, found: Iterable[Neighbour]) -> None:
    """Keep where tables lie, but for those that could not be loaded: they are looked at again."""
    known = [one for one in found if not one.problem]
    try:
        record.keep_look(catalog.identity, at_ms, zlib.compress(msgspec.json.encode(known)))
    except Exception as error:  # noqa: BLE001 - the next run looks again
        _LOG.info("the look at catalog %s is not kept with the record of runs: %s", catalog.name, one_line(error))


def _read_down(record: LookRecord, catalog: Catalog, max_age_ms: int) -> tuple[Neighbour, ...] | None:
    """Where tables lay at the last look, if that is not too old, nor of a time to come, as where a clock was wrong."""
    with suppress(Exception):
        kept = record.last_look(catalog.identity)
        if kept is not None and 0 <= catalog.runtime.now_ms() - kept[0] < max_age_ms:
            return from_json(zlib.decompress(kept[1]), tuple[Neighbour, ...])
    return None


def _beside(catalog: Catalog) -> list[Neighbour]:
    """Where the tables of other catalogs in the same database lie, under the names of those.

    This catalog's storage need not reach their metadata: then they lie around that, and it is not tried again.
    """
    at_once = lists_pointers(catalog)
    beside = {} if at_once is None else at_once.list_pointers_beside()
    pointers = {name: pointer for name, pointer in beside.items() if pointer is not None}

    def look(name: Identifier) -> Neighbour:
        pointer = pointers[name]
        known = known_neighbour(name, pointer)
        failed = (catalog.name, pointer.metadata_location)
        try:
            if known is None and failed not in _FAILED_BESIDE:
                return look_by(name, pointer)
        except IcekeepError:
            _FAILED_BESIDE.add(failed)
        if known is None:
            directory = pointer.metadata_location.rpartition("/")[0]
            around = TableLocations(None, directory.rpartition("/")[0], (directory,))
            return Neighbour(name, pointer.metadata_location, around)
        return known

    return _each(look, pointers)


def _looked_at(catalog: Catalog, pointers: Mapping[Identifier, Pointer | None]) -> list[Neighbour]:
    """Where tables lie that are still there."""
    known = {name: None if pointer is None else known_neighbour(name, pointer) for name, pointer in pointers.items()}
    unknown = [name for name, neighbour in known.items() if neighbour is None]
    looked = dict(zip(unknown, _each(lambda name: look_at(catalog, name, pointers[name]), unknown), strict=True))
    found = [neighbour or looked[name] for name, neighbour in known.items()]
    return [neighbour for neighbour in found if neighbour is not None]


def _all_tables(catalog: Catalog, namespaces: set[Identifier]) -> _Listed:
    """All tables of the catalog, those of some namespaces at least.

    Raises:
        TryAgainError: the catalog is out of reach: it would list tables that must be known.
        ConfigError: it is not where the configuration says.
    """
    at_once = lists_pointers(catalog)
    if at_once is not None:
        pointers, problem = _listed(at_once.list_pointers, f"catalog {catalog.name!r} does not list its tables")
        return _Listed(dict(sorted((pointers or {}).items())), problem)

    def list_one(namespace: Identifier) -> tuple[Sequence[Identifier], str]:
        about = f"catalog {catalog.name!r} does not list the tables of namespace {format_identifier(namespace)!r}"
        try:
            listed, problem = _listed(lambda: catalog.list_tables(namespace), about)
        except NotFoundError:
            # Somebody dropped it since the namespaces were listed.
            return (), ""
        return listed or (), problem

    try:
        known, problem = _listed(catalog.list_namespaces, f"catalog {catalog.name!r} does not list its namespaces")
    except NamespacesMissingError as error:
        known, problem = [*error.known], first_line(error)
    problems = [problem]
    pointers_by_name: dict[Identifier, Pointer | None] = {}
    for listed, problem in _each(list_one, sorted({*namespaces, *(known or ())})):
        pointers_by_name.update(dict.fromkeys(listed))
        problems.append(problem)
    return _Listed(pointers_by_name, "; ".join(filter(None, problems)))


def _listed(lists: Callable[[], R], about: str) -> tuple[R | None, str]:
    """What a catalog lists, or why it may not or cannot.

    Raises:
        NotFoundError: what is to be listed is not there.
        TryAgainError, ConfigError: the catalog itself is out of reach, or is not there.
        NamespacesMissingError: it lists some namespaces.
    """
    try:
        return lists(), ""
    except (TryAgainError, ConfigError, NotFoundError, NamespacesMissingError):
        raise
    except IcekeepError as error:
        return None, f"{about}: {first_line(error)}"


def folded(identifier: Identifier) -> tuple[str, ...]:
    return tuple(part.casefold() for part in identifier)


def _each(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The answers for some items, in their order; in threads where there are many."""
    these = list(items)
    turns = [these[start : start + _REQUESTS_EACH] for start in range(0, len(these), _REQUESTS_EACH)]
    answers = answer_each(lambda turn: [work(item) for item in turn], turns, id, REQUESTS_AT_ONCE)
    return [answer for some in answers for answer in some]
