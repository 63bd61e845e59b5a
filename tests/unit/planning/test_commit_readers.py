"""Merging by copying records: the same manifests come of it as of decoding and encoding every entry."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.planning import commit_readers as merge_append
from icekeep.planning.commit_readers import MergingManifestReader
from icekeep.planning.decoder import ManifestDecoder
from icekeep.spec.manifests.structs import ManifestEntry
from kit.tables import BY_KIND, data_file, entries_of, live, manifests_of, memory_table, orphans, raw_entries


@pytest.fixture(autouse=True)
def nothing_is_few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_append, "_FEW_ENTRIES_COUNT", -1)
        yield


def appended(table: Any, *files: Any, reader: type[ManifestReader]) -> Any:
    change = AppendFiles(files=files)
    return commit(table, change, reader=reader(table.storage), runtime=table.catalog.runtime).table


def history(reader: type[ManifestReader], version: int, kinds: list[str], gone: set[int], **properties: str) -> Any:
    """Appends of one file each, some of which is deleted before the last, with merging of all manifests at the end."""
    table = memory_table(spec=BY_KIND, format_version=version, **properties)
    for number, kind in enumerate(kinds):
        if number == len(kinds) - 1:
            for name in sorted(name for name in gone if name < number):
                paths = frozenset(e.data_file.file_path for e in entries_of(table, f"f{name}"))
                table = commit(table, DeleteFiles(paths=paths), runtime=table.catalog.runtime).table
        table = appended(table, data_file(f"f{number}", 3 + number, (kind,)), reader=reader)
    return table


def told(table: Any) -> tuple[list[Any], list[Any]]:
    """All entries in order, and what the list says of each manifest but its length and name."""
    rows = [replace(m, manifest_path="", manifest_length=0, added_snapshot_id=0) for m in manifests_of(table)]
    entries: list[ManifestEntry] = [replace(e, snapshot_id=None) for e in entries_of(table)]
    return [replace(e, data_file=replace(e.data_file, file_path=e.data_file.file_path[-8:])) for e in entries], rows


@pytest.mark.slow
@given(
    st.lists(st.sampled_from("xyz"), min_size=2, max_size=9),
    st.sets(st.integers(0, 7), max_size=3),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["gzip", "zstd", "uncompressed"]),
    st.sampled_from(["100000", "4000"]),
)
def test_the_same_comes_of_it_as_entry_by_entry(
    kinds: list[str], gone: set[int], version: int, codec: str, target: str
) -> None:
    properties = {
        "commit__manifest__min_count_to_merge": "2",
        "commit__manifest__target_size_bytes": target,
        "write__manifest__compression_codec": codec,
    }
    fast, slow = (
        history(reader, version, kinds, gone, **properties) for reader in (MergingManifestReader, ManifestReader)
    )
    assert live(fast) == live(slow)
    assert told(fast)[0] == told(slow)[0]
    if codec != "gzip" or target != "4000":
        # Two ways to deflate make different sizes, by which bins are filled.
        assert told(fast)[1] == told(slow)[1]
    assert orphans(fast.catalog) == set()


def test_the_new_entries_stay_added_and_inherit() -> None:
    table = history(MergingManifestReader, 2, ["x", "y", "x"], set(), commit__manifest__min_count_to_merge="3")
    entries = {entry.name: entry for entry in raw_entries(table)}
    assert [entries[f"f{n}"].status for n in range(3)] == [0, 0, 1]
    assert [entries[f"f{n}"].sequence_number for n in range(3)] == [1, 2, None]


@pytest.mark.slow
def test_a_merge_is_cut_at_the_target_size() -> None:
    """Packed manifests that together are below the target may be above it where they are not packed any more."""
    table = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(3):
        files = [data_file(f"{'long' * 20}{number}-{i}", 3, ("x",)) for i in range(500)]
        table = appended(table, *files, reader=MergingManifestReader)
    settings = {
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "2",
        "commit.manifest.target-size-bytes": "100000",
        "write.manifest.compression-codec": "uncompressed",
    }
    table = commit(table, ChangeProperties(updates=settings), runtime=table.catalog.runtime).table
    before = live(table)
    table = appended(table, data_file("new", 3, ("y",)), reader=MergingManifestReader)
    assert live(table) == before | {"new": 1}
    lengths = [m.manifest_length for m in manifests_of(table)]
    assert len(lengths) > 1
    assert all(150_000 <= length < 250_000 for length in lengths[:-1])


def test_without_datafusion_entries_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_append, "chosen_decoder", lambda: (ManifestDecoder.FASTAVRO, "not installed"))
    monkeypatch.setattr(merge_append, "live_records", None)
    table = history(MergingManifestReader, 2, ["x", "y", "x"], set(), commit__manifest__min_count_to_merge="3")
    assert live(table) == {"f0": 1, "f1": 1, "f2": 1}
    assert len(manifests_of(table)) == 1
