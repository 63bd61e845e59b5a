"""A catalog in memory whose swaps can be told, call by call, what to do and what to answer."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from icekeep.catalog.base import (
    Committed,
    Conflict,
    Description,
    Identifier,
    OperatorRules,
    Pointer,
    SwapOutcome,
    Table,
    Unknown,
    as_identifier,
    check_meant,
    in_parts,
    no_such_namespace,
    no_such_table,
    table_exists,
    validate_namespace,
    validate_table_identifier,
)
from icekeep.catalog.metadata_files import (
    attached_metadata,
    encode,
    file_version,
    new_location,
    next_metadata,
    read_table,
)
from icekeep.catalog.registering import read_unregistered, registered
from icekeep.errors import UnavailableError, UnsupportedError, UsageError
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.runtime import Runtime
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Requirement, Update
from icekeep.storage.base import Storage
from icekeep.storage.locations import join
from kit.runtime import FakeRuntime
from kit.storage import MemoryStorage


@dataclass(frozen=True)
class Step:
    """What one swap does: be preceded by `before`, land or not (or only at the `late`th load after it), and answer.

    A "conflict" is final, as of a catalog that compared for itself; a "refusal" is not.
    """

    lands: bool = True
    answer: str | BaseException = "truth"
    before: Callable[[], object] | None = None
    late: int = 0


COMMITS = Step()
CONFLICTS = Step(lands=False, answer="conflict")
IS_REFUSED = Step(lands=False, answer="refusal")
LANDS_BUT_SAYS_CONFLICT = Step(answer="refusal")
LANDS_BUT_IS_UNKNOWN = Step(answer="unknown")
IS_UNKNOWN = Step(lands=False, answer="unknown")


def fails(error: BaseException) -> Step:
    """Raise without having done anything."""
    return Step(lands=False, answer=error)


def lands_but_raises(error: BaseException) -> Step:
    """Raise, though it is done."""
    return Step(answer=error)


def lands_late(loads: int, answer: str | BaseException = "unknown") -> Step:
    """Be unknown, or answer otherwise, and land just before the `loads`th load after it."""
    return Step(lands=False, answer=answer, late=loads)


def after(act: Callable[[], object], then: Step = COMMITS) -> Step:
    """Let somebody act between the load and the swap, such as another writer who commits."""
    return Step(lands=then.lands, answer=then.answer, before=act, late=then.late)


class MemoryCatalog:
    """Follows its script, a step a swap, and commits once that is used up; `swaps` keeps what was asked of it."""

    drop_frees_metadata_names = False
    garbage_collector: str | None = None

    def __init__(
        self,
        storage: Storage | None = None,
        runtime: Runtime | None = None,
        warehouse: str = "memory://lake/wh",
        name: str = "local",
        *,
        compares_metadata: bool = True,
        restores_snapshots: bool = True,
    ) -> None:
        # A new world, in which identifiers that a fake runtime draws come again.
        forget_locations()
        self.name = name
        self.identity = f"memory {name}"
        self.compares_metadata = compares_metadata
        self.restores_snapshots = restores_snapshots
        self.warehouse: str | None = warehouse
        self.reclaim_roots: tuple[str, ...] = ()
        self.rewrite_roots: tuple[str, ...] = ()
        self.rules = OperatorRules()
        self.runtime = FakeRuntime() if runtime is None else runtime
        self.storage: Storage = MemoryStorage(self.runtime) if storage is None else storage
        self.script: deque[Step] = deque()
        self.swaps: list[tuple[tuple[Requirement, ...], tuple[Update, ...]]] = []
        self.described: dict[Identifier, Description] = {}
        self.refuses: set[CatalogChange] = set()
        self.failing_loads = 0
        self.loads_count = 0
        self._locations: dict[Identifier, str] = {}
        self._namespaces: set[Identifier] = set()
        self._late: tuple[int, Callable[[], SwapOutcome]] | None = None

    def follow(self, *steps: Step) -> None:
        """Add steps for the next swaps."""
        self.script.extend(steps)

    def load(self, identifier: Identifier | str) -> Table:
        identifier = validate_table_identifier(as_identifier(identifier))
        self.loads_count += 1
        if self.failing_loads:
            self.failing_loads -= 1
            raise UnavailableError("the catalog is out of reach")
        self._land_late()
        if identifier not in self._locations:
            raise no_such_table(self, identifier)
        return read_table(self, identifier, self._locations[identifier], self.storage)

    def find(self, identifier: Identifier | str) -> Pointer:
        identifier = validate_table_identifier(as_identifier(identifier))
        if identifier not in self._locations:
            raise no_such_table(self, identifier)
        return Pointer(self._locations[identifier], self.storage)

    def check_change(self, change: CatalogChange) -> None:
        if change in self.refuses:
            raise UnsupportedError(f"catalog {self.name!r} does not take a {change.value}")

    def describe(self, identifier: Identifier) -> Description | None:
        return self.described.get(identifier)

    def create(self, identifier: Identifier, metadata: TableMetadata) -> Table:
        validate_table_identifier(identifier)
        if identifier[:-1] not in self._namespaces:
            raise no_such_namespace(self, identifier[:-1])
        if identifier in self._locations:
            raise table_exists(self, identifier)
        self._locations[identifier] = self._write(metadata, 0)
        return self._read(identifier)

    def default_location(self, identifier: Identifier) -> str:
        return join(self.warehouse or "", *validate_table_identifier(identifier))

    def locked(self, table: Table) -> AbstractContextManager[None]:
        return nullcontext()

    def swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        self.swaps.append((tuple(requirements), tuple(updates)))
        return self._scripted(table, lambda: self._swap(table, requirements, updates))

    def reattach(self, table: Table) -> SwapOutcome:
        return self._scripted(table, lambda: self._replace(table, attached_metadata(table, self.runtime.now_ms())))

    def _scripted(self, table: Table, act: Callable[[], SwapOutcome]) -> SwapOutcome:
        step = self.script.popleft() if self.script else COMMITS
        if step.before is not None:
            # What others do meanwhile is no part of the script.
            script, self.script = self.script, deque()
            step.before()
            self.script = script
        location = f"{table.metadata.location}/metadata/99999-never.metadata.json"
        if step.late:
            self._late = (step.late, act)
        if step.lands:
            outcome = act()
            if step.answer == "truth":
                return outcome
            assert isinstance(outcome, Committed), f"the script wants this swap to land, but it gave {outcome}"
            location = outcome.table.metadata_location
        if isinstance(step.answer, BaseException):
            raise step.answer
        if step.answer == "conflict":
            return Conflict("another writer was faster", is_final=True)
        if step.answer == "refusal":
            return Conflict("the server says that another writer was faster")
        return Unknown("the connection was lost", location)

    def drop(
        self, identifier: Identifier, *, table_uuid: str | None = None, metadata_location: str | None = None
    ) -> str:
        validate_table_identifier(identifier)
        if identifier not in self._locations:
            raise no_such_table(self, identifier)
        pointer = Pointer(self._locations[identifier], self.storage)
        check_meant(self, identifier, pointer, table_uuid, metadata_location)
        return self._locations.pop(identifier)

    def register_table(self, identifier: Identifier, metadata_location: str) -> Table:
        table = read_unregistered(self, identifier, metadata_location, self.storage)
        if identifier[:-1] not in self._namespaces:
            raise no_such_namespace(self, identifier[:-1])
        return registered(table, lambda: self._locations.update({identifier: metadata_location}))

    def rename(self, old: Identifier, new: Identifier) -> None:
        if new in self._locations:
            raise table_exists(self, new)
        if old not in self._locations:
            raise no_such_table(self, old)
        self._locations[new] = self._locations.pop(old)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        if in_parts(namespace) not in self._namespaces:
            raise no_such_namespace(self, namespace)
        return sorted(identifier for identifier in self._locations if identifier[:-1] == namespace)

    def list_namespaces(self) -> list[Identifier]:
        return sorted(self._namespaces)

    def create_namespace(
        self, namespace: Identifier, properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None:
        validate_namespace(namespace)
        if namespace in self._namespaces and not exists_ok:
            raise UsageError(f"namespace {'.'.join(namespace)!r} exists already in catalog {self.name!r}")
        self._namespaces.update(namespace[: n + 1] for n in range(len(namespace)))

    def drop_namespace(self, namespace: Identifier) -> None:
        if in_parts(namespace) not in self._namespaces:
            raise no_such_namespace(self, namespace)
        inside = [name for name in (*self._namespaces, *self._locations) if name[:-1] == namespace]
        if inside:
            raise UsageError(f"namespace {'.'.join(namespace)!r} is not empty")
        self._namespaces.remove(namespace)

    def _swap(self, table: Table, requirements: Sequence[Requirement], updates: Sequence[Update]) -> SwapOutcome:
        new = next_metadata(table, requirements, updates, self.runtime.now_ms())
        return new if isinstance(new, Conflict) else self._replace(table, new)

    def _replace(self, table: Table, new: TableMetadata) -> SwapOutcome:
        current = self._locations.get(table.identifier)
        if current is None:
            return Conflict("the table was dropped")
        if current != table.metadata_location:
            return Conflict(f"another writer committed {current!r}")
        self._locations[table.identifier] = self._write(new, file_version(table.metadata_location) + 1)
        return Committed(self._read(table.identifier))

    def _land_late(self) -> None:
        if self._late is not None:
            loads, act = self._late
            self._late = (loads - 1, act) if loads > 1 else None
            if loads == 1:
                assert isinstance(act(), Committed)

    def _write(self, metadata: TableMetadata, version: int) -> str:
        location = new_location(metadata, version, self.runtime)
        self.storage.create(location, encode(metadata))
        return location

    def _read(self, identifier: Identifier) -> Table:
        return read_table(self, identifier, self._locations[identifier], self.storage)
