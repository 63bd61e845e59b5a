"""Tables whose newest manifest list is gone, and what must hold when it is back, or is left."""

from collections import Counter

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.manifests.structs import Status
from icekeep.tables.verbs import append
from kit.choices import Choices
from kit.columns import table_of
from kit.damager import Damager
from kit.naive_scan import live_entries, naive_rows
from kit.no_spark import no_spark
from kit.our_histories import ByIcekeep, in_memory
from kit.row_histories import START
from kit.row_texts import scanned_rows

LIST = 201


def mended_by(table: Table, fault: int = LIST):
    plan = plan_repair(table, no_spark, fault=[fault])
    return repair(table, no_spark, fault=[fault], approve=plan.hash)


def some_rows(by: ByIcekeep, count: int = 3):
    schema = by.table.metadata.schema
    names = [field.name for field in schema.fields]
    return table_of(schema, [dict.fromkeys(names) | {"id": 1_000 + n} for n in range(count)])


def entries_of(table: Table) -> Counter:
    """The live entries with all that they say; an older one is added or existing, by which manifest has it."""
    head = table.metadata.current_snapshot_id
    entries = live_entries(table)
    return Counter(repr(e if e.snapshot_id == head else replace(e, status=Status.EXISTING)) for e in entries)


def files_in(table: Table) -> dict[str, bytes]:
    return {location: data for location, (data, _) in table.storage.files.items()}


def without_list(by: ByIcekeep) -> Damager:
    damager = Damager(by.catalog, by.identifier, Choices(0))
    damager.remove(damager.head()["manifest-list"])
    return damager


class Before:
    """What a table was before its list was lost."""

    def __init__(self, by: ByIcekeep) -> None:
        self.by, table = by, by.table
        self.table = table
        self.rows, self.naive, self.entries, self.files = (
            scanned_rows(table), naive_rows(table), entries_of(table), files_in(table),
        )  # fmt: skip

    def is_back(self) -> None:
        """The rows are, and the entries, and of all files only the list is written."""
        now = self.by.table
        assert scanned_rows(now) == self.rows
        assert naive_rows(now) == self.naive
        assert entries_of(now) == self.entries
        assert now.metadata_location == self.table.metadata_location
        written = files_in(now)
        (location,) = {now.metadata.head("main").manifest_list}
        assert written.keys() == self.files.keys()
        assert {k: v for k, v in written.items() if v != self.files[k]}.keys() <= {location}
        assert check(now, no_spark, deep=True, ref="main").status == "sound"
        # Others can commit to it.
        append(now, [some_rows(self.by)])
        assert sum(scanned_rows(self.by.table).values()) == sum(self.rows.values()) + 3

    def is_left(self, result, why: str = "") -> None:
        """Nothing was written, and why is said."""
        assert not result.mended
        assert any(one.fault_id == LIST and why in one.reason for one in result.not_mended), result
        location = self.table.metadata.head("main").manifest_list
        written = files_in(self.by.table)
        assert location not in written
        assert {k: v for k, v in self.files.items() if k != location}.items() <= written.items()


def three_files(version: int = 2) -> ByIcekeep:
    """A table of three data files in as many manifests, one by one appended."""
    by = in_memory()
    by.create(START, (), version)
    commit(by.table, ChangeProperties(updates={"commit.manifest-merge.enabled": "false"}))
    for _ in range(3):
        append(by.table, [some_rows(by)])
    return by


class Lost(Before):
    """A table whose newest list is gone: that of `three_files`, if no other is given."""

    def __init__(self, version: int = 2, by: ByIcekeep | None = None) -> None:
        by = by or three_files(version)
        super().__init__(by)
        self.list = str(by.table.metadata.head("main").manifest_list)
        self.bytes = by.table.storage.read(self.list)
        self.damager = without_list(by)
        name = self.list.rpartition("/")[2].removesuffix(".avro")
        self.directory, self.uuid = self.list.rpartition("/")[0], name.split("-", 3)[3]
        # The first manifest that the newest commit wrote.
        self.own = f"{self.directory}/{self.uuid}-m0.avro"

    def left_over(self, change=None, *, source: str | None = None, gap: int = 0) -> str:
        """One more manifest that is named by the commit, a copy of its own or of another one."""
        number = sum(f"/{self.uuid}-m" in path for path in self.files) + gap
        location = f"{self.directory}/{self.uuid}-m{number}.avro"
        self.damager.write(location, self.damager.read(source or self.own))
        if change is not None:
            self.damager.edit_avro(location, change)
        self.files[location] = self.damager.read(location)
        return location

    def summary(self, change, which: str = "head") -> None:
        """Change the summary of the newest snapshot, or of the one before."""

        def edit(document):
            head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
            parent = next(s for s in document["snapshots"] if s["snapshot-id"] == head["parent-snapshot-id"])
            change((head if which == "head" else parent)["summary"])

        self.damager.edit_metadata(edit)
        self.files[self.damager.location] = self.damager.read(self.damager.location)

    def mended(self):
        result = mended_by(self.by.table)
        assert result.mended, result
        return result


def parent_of(table):
    metadata = table.metadata
    return metadata.snapshot(metadata.head("main").parent_snapshot_id)
