"""Any history beside a rewrite of manifests: it lands, and the live files are those that others leave, or is refused."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import SetCurrentSnapshot
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from kit.changes import run
from kit.deletes import add_deletes, deletion_vector, equality_deletes
from kit.memory_catalog import MemoryCatalog, after
from kit.rewritten_manifests import latest, stated
from kit.rewritten_manifests import rewrite_staged as rewrite
from kit.tables import BY_KIND, add, data_file, entries_of, memory_table, orphans, raw_list

MERGING = {"commit__manifest__min_count_to_merge": "2"}

_NAMES = [f"{kind}{n}" for kind in "xy" for n in range(4)]
_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "delete", "compact", "overwrite", "deletes", "undelete", "manifests", "rollback"]),
        st.integers(0, 1000),
    ),
    max_size=3,
)


class Others:
    """What others do, as far as the table allows it at that moment."""

    def __init__(self, table):
        self.table, self.count = table, 0

    def new(self, kind):
        self.count += 1
        return data_file(f"{kind}-new{self.count}", partition=(kind,))

    def act_all(self, acts):
        for what, at in acts:
            # Theirs may be refused.
            with suppress(ConflictError):
                self.act(what, at)

    def act(self, what, at):
        self.count += 1
        table = latest(self.table)
        entries = entries_of(table) if table.metadata.current_snapshot else ()
        data = [e for e in entries if e.data_file.content is FileContent.DATA]
        deletes = [e for e in entries if e.data_file.content is not FileContent.DATA]
        one = data[at % len(data)] if data else None
        kind = "x" if one is None else one.data_file.partition[0]
        version = table.metadata.format_version
        if what == "append":
            run(table, AppendFiles(files=(self.new(kind),)))
        elif what == "delete" and one:
            run(table, DeleteFiles(paths=frozenset({one.data_file.file_path})))
        elif what == "compact" and one and not deletes:
            some = tuple(e for e in data if e.data_file.partition == (kind,))[: 1 + at % 3]
            number = min(e.sequence_number for e in some)
            added = replace(self.new(kind), record_count=10 * len(some))
            run(table, RewriteFiles(removed=some, added=(added,), schema_id=0, data_sequence_number=number))
        elif what == "overwrite" and one:
            run(table, OverwriteFiles(removed=(one,), added=(self.new(kind),)))
        elif what == "deletes" and one and version > 1:
            name = one.data_file.file_path.rsplit("/", 1)[-1]
            where = {"partition": (kind,)}
            new = deletion_vector if version > 2 and at % 2 else None
            if new is None:
                add_deletes(table, equality_deletes(f"e{self.count}", **where))
            else:
                add_deletes(table, deletion_vector(f"v{self.count}", name, **where))
        elif what == "undelete" and deletes:
            run(table, RowDelta(removed_deletes=(deletes[at % len(deletes)],)))
        elif what == "manifests" and entries:
            change = rewrite(
                table,
                each=1 + at % 4,
                prefix=f"theirs-{self.count}",
                chosen=lambda m: at % 3 or m.content is ManifestContent.DATA,
            )
            run(table, change)
        elif what == "rollback":
            snapshots = [s.snapshot_id for s in table.metadata.snapshots]
            now = table.metadata.current_snapshot_id
            run(table, SetCurrentSnapshot(snapshot_id=snapshots[at % len(snapshots)], expected_id=now))


@pytest.mark.slow
@given(st.sampled_from([1, 2, 3]), st.booleans(), _ACTS, _ACTS, _ACTS, st.integers(1, 5), st.booleans(), st.booleans())
def test_only_manifests_that_others_replaced_are_refused(
    version, merges, before, first, second, each, drops, takes_all
):
    table = memory_table(MemoryCatalog(), spec=BY_KIND, format_version=version, **(MERGING if merges else {}))
    for one, other in batched_pairs(_NAMES):
        table = add(table, *(data_file(name, partition=(name[0],)) for name in (one, other)))
    others = Others(table)
    others.act_all(before)
    table, left = latest(table), []

    def acting(acts):
        def do():
            others.act_all(acts)
            left.append(stated(latest(table)))

        return do

    change = rewrite(
        table,
        each=each,
        chosen=lambda m: takes_all or len(m.manifest_path + str(m.manifest_length)) % 2,
        format_version=version,
        drop_dangling_deletes=drops,
    )
    table.catalog.follow(after(acting(first)), after(acting(second)))
    left.append(stated(table))
    try:
        result = run(table, change)
    except ConflictError:
        assert {m.manifest_path for m in change.replaced} - {row["manifest_path"] for row in raw_list(latest(table))}
        assert stated(latest(table)) == left[-1]
        assert orphans(table.catalog) <= {m.manifest_path for m in change.added}
        return
    found = stated(result.table)
    if drops:
        gone = Counter(left[-1]) - Counter(found)
        assert not any("FileContent.DATA" in said for said in gone)
        assert gone.total() == int(result.summary.get("removed-delete-files", 0))
        found = sorted([*found, *gone.elements()])
        reader = ManifestReader(result.table.storage)
        assert dangling_deletes_count(result.table.metadata, "main", reader) == 0
    assert found == left[-1]
    assert orphans(table.catalog) == set()


def batched_pairs(names):
    return zip(names[::2], names[1::2], strict=True)
