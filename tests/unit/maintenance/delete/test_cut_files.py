"""Manifests and manifest lists that are cut, at the end of every block and elsewhere: what is retained stops the run, what is
expired costs nothing that is reachable.
"""

import io
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from icekeep.errors import IcekeepError, SafetyError
from icekeep.maintenance.expire.job import expire_snapshots, plan_expire_snapshots
from icekeep.spec.avro import read_header
from kit.cases import for_each, some_of
from kit.manifests import blocks
from kit.memory_catalog import after
from kit.reclaim_histories import DAY_MS, History
from kit.reclaim_oracle import Oracle, normal
from kit.runtime import no_spark, with_runtime

pytestmark = pytest.mark.slow

STEPS = [
    ("append", 17),
    ("append", 25),
    ("append", 34),
    ("tag", 45),
    ("equality", 26),
    ("append", 23),
    ("overwrite", 23),
    ("rewrite", 34),
    ("append", 25),
]
"""After which snapshots that stay and snapshots that go share some manifests and some files."""


class Case:
    """A table whose manifests and lists have a block for each record, some retained and some not; all that a run needs."""

    def __init__(self, version: int) -> None:
        self.history = History(6, STEPS, format_version=version)
        self.history.runtime.pass_ms(20 * DAY_MS)
        self._write_blocks()
        self.location = self.history.table.metadata_location
        oracle, roots = Oracle(self.history.files), self.history.elsewhere
        self.history.catalog.reclaim_roots = roots
        self.expected = oracle.expiration(self.location, now_ms=self.now_ms, roots=roots, older_than_ms=self.now_ms)
        self.files = self.history.files

    @property
    def now_ms(self) -> int:
        return self.history.runtime.now_ms()

    def _write_blocks(self) -> None:
        lengths: dict[str, int] = {}
        document = Oracle(self.history.files).document(self.history.table.metadata_location)
        lists = {snapshot["manifest-list"] for snapshot in document["snapshots"]}
        manifests = {row["manifest_path"] for location in lists for row in self._records(location)[0]}
        for location in sorted(manifests):
            lengths[location] = self._replace(location, *self._records(location))
        for location in sorted(lists):
            rows, reader = self._records(location)
            self._replace(location, [{**row, "manifest_length": lengths[row["manifest_path"]]} for row in rows], reader)

    def _records(self, location: str) -> tuple[list[Any], Any]:
        reader = fastavro.reader(io.BytesIO(self.history.storage.read(location)))
        return list(reader), reader

    def _replace(self, location: str, records: list[Any], reader: Any) -> int:
        out = io.BytesIO()
        kept = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        codec = reader.metadata.get("avro.codec", "null")
        fastavro.writer(out, reader.writer_schema, records, codec, sync_interval=1, metadata=kept)
        self.put(location, out.getvalue())
        assert len(blocks(out.getvalue())) == len(records)
        return len(out.getvalue())

    def put(self, location: str, data: bytes) -> None:
        """Behind the store's back."""
        self.history.storage.delete_many([location])
        self.history.storage.create(location, data)

    def kept(self, kind: str) -> dict[str, str]:
        """The files of a kind that snapshots which stay lead to, with a spelling of each."""
        return {name: next(iter(found)).spelling for name, found in self._of(self.expected.retained, kind)}

    def gone(self, kind: str) -> dict[str, str]:
        """Those that only snapshots which go lead to."""
        return {
            name: next(iter(found)).spelling
            for name, found in self._of(self.expected.expired, kind)
            if name not in self.expected.retained
        }

    def _of(self, files: Any, kind: str) -> Iterator[Any]:
        return ((name, found) for name, found in files.items() if kind in {reached.kind for reached in found})

    def run(self, **options: Any) -> Any:
        table = self.history.catalog.load(self.history.table.identifier)
        return expire_snapshots(
            with_runtime(table, self.history.runtime), no_spark, older_than=self.now_ms, trash=0, **options
        )

    def plan(self) -> Any:
        table = self.history.catalog.load(self.history.table.identifier)
        return plan_expire_snapshots(
            with_runtime(table, self.history.runtime), no_spark, older_than=self.now_ms, trash=0
        )


def cuts(data: bytes) -> dict[str, int]:
    """Lengths shorter than that of an Avro file, by what they leave."""
    header = read_header(data, "").length_bytes
    found = {"nothing": 0, "one byte": 1, "a part of the header": header // 2, "the header": header}
    end = header
    for number, block in enumerate(blocks(data)[:-1], start=1):
        end += len(block)
        found[f"{number} blocks"] = end
        found[f"{number} blocks and a half"] = end + len(blocks(data)[number]) // 2
        found[f"{number} blocks and a count"] = end + 1
    found["all but the last marker"] = len(data) - 16
    found["all but one byte"] = len(data) - 1
    return found


@for_each("kind", ["manifest list", "manifest"])
@for_each("version", [1, 2, 3])
def test_what_is_retained_and_cut_stops_the_run(version: int, kind: str) -> None:
    case = Case(version)
    tried = 0
    kept = case.kept(kind)
    assert all(len(blocks(case.files[name])) > 1 or kind == "manifest" for name in kept)
    all_cuts = [(name, *cut) for name in kept for cut in cuts(case.files[name]).items()]
    for name, what, length_bytes in some_of(all_cuts, least=21):
        case.put(kept[name], case.files[name][:length_bytes])
        damaged = case.history.files
        with pytest.raises(SafetyError, match="nothing is deleted"):
            case.plan()
        with pytest.raises(SafetyError, match="nothing is deleted"):
            case.run()
        now = {location: data for location, data in case.history.files.items() if "/.icekeep/" not in location}
        assert now == damaged, f"{kind} cut to {what}"
        tried += 1
        case.put(kept[name], case.files[name])
    assert tried > 20
    assert not [location for location in case.history.files if "/.icekeep/" in location and "plan.json" in location]
    case.run()
    assert {normal(name) for name in case.files} - {normal(name) for name in case.history.files} == case.expected.files


@for_each("kind", ["manifest list", "manifest"])
@for_each("version", [1, 2, 3])
def test_what_is_expired_and_cut_costs_nothing_that_is_reachable(version: int, kind: str) -> None:
    sound = Case(version)
    places = sound.gone(kind)
    assert places
    tried = 0
    all_cuts = [(name, *cut) for name in places for cut in cuts(sound.files[name]).items()]
    for name, what, length_bytes in some_of(all_cuts, least=11):
        case = Case(version)
        case.put(places[name], sound.files[name][:length_bytes])
        try:
            case.run()
        except IcekeepError:
            assert case.history.catalog.load(case.history.table.identifier).metadata_location == case.location
        found = {normal(name): data for name, data in case.history.files.items()}
        for reachable in case.expected.retained:
            assert found[reachable] == case.files[reachable], f"{kind} cut to {what}"
        gone = {normal(name) for name in case.files} - found.keys()
        assert gone <= case.expected.files, "what a damaged file leads to stays, and never more goes"
        tried += 1
    assert tried > 10


@pytest.mark.parametrize("kind", ["manifest list", "manifest"])
def test_what_is_cut_while_others_commit(kind: str) -> None:
    """Then the snapshots are gone, and no file is; the next run deletes them once the file is whole again."""
    case = Case(2)
    # The table keeps two snapshots of a branch, so that the present head stays when there is another.
    location = case.history.metadata.current_snapshot.manifest_list
    if kind == "manifest":
        location = next(fastavro.reader(io.BytesIO(case.history.storage.read(location))))["manifest_path"]
    whole = case.files[normal(location)]

    def interfere() -> None:
        case.history.step("append", 99)
        case.put(location, whole[:-1])

    case.history.catalog.follow(after(interfere))
    result = case.run()
    assert (result.status, result.expired_snapshots_count > 0) == ("partial", True)
    assert "the snapshots are expired, and not all of their files are deleted" in result.left_reason
    assert {normal(name) for name in case.files} <= {normal(name) for name in case.history.files}
    case.put(location, whole)
    case.run()
    files = case.history.files
    assert {normal(name) for name in case.files} - {normal(name) for name in files} >= case.expected.files
    assert Oracle(files).missing(case.history.catalog.load(case.history.table.identifier).metadata_location) == set()
