"""Which partition spec the new files of a run have.

Files are moved to the table's default spec, or to the one of the option `output-spec-id`. Without the option they stay in
their own spec, and in their partition, where moving them is not safe or not possible: equality deletes of their spec are
live, which another writer may add to while files move out of their reach; or the default spec has a transform that is not
known, so that no partition of it can be made.
"""

import numpy as np

from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.errors import NotFoundError, UnsupportedError
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, delete_manifests, folded
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata


def output_specs(scan: Scan, spark: SparkSource, options: RewriteDataFilesOptions) -> dict[int, int]:
    """The spec of the new files by the spec of the old ones.

    Raises:
        NotFoundError: the table has no spec of that id.
        UnsupportedError: files would be written in a spec that has a transform which is not known.
        InvalidTableError, MissingFileError: a delete manifest cannot be read.
    """
    metadata = scan.table.metadata
    asked = options.output_spec_id
    if asked is not None:
        _refuse_unfit(metadata, asked)
        return dict.fromkeys(metadata.specs_by_id, asked)
    staying = set(metadata.specs_by_id)
    if not metadata.spec.has_unknown_transform:
        others = {manifest.partition_spec_id for manifest in scan.data.opened} - {metadata.default_spec_id}
        staying = _with_equality_deletes(scan, spark, others) if others else set()
    found = {i: i if i in staying else metadata.default_spec_id for i in metadata.specs_by_id}
    refuse_unknown_transforms({found[m.partition_spec_id] for m in scan.data.opened}, metadata.specs_by_id)
    return found


class EqualityDeleteSpecs:
    """A `Fold`: the specs of live equality delete files."""

    def __init__(self) -> None:
        self.spec_ids: set[int] = set()

    def add(self, decoded: DecodedEntries) -> None:
        """Take in some entries."""
        contents = decoded.entries.column("content").to_numpy(zero_copy_only=False)
        spec_ids = decoded.entries.column("spec_id").to_numpy(zero_copy_only=False)
        found = spec_ids[contents == int(FileContent.EQUALITY_DELETES)]
        self.spec_ids.update(np.unique(found).tolist())

    def merge(self, other: "EqualityDeleteSpecs") -> None:
        """Take in what another has found."""
        self.spec_ids |= other.spec_ids


def _with_equality_deletes(scan: Scan, spark: SparkSource, spec_ids: set[int]) -> set[int]:
    """Those of some specs that live equality deletes belong to, anywhere in the snapshot."""
    metadata = scan.table.metadata
    manifests = [m for m in delete_manifests(scan.listed) if m.partition_spec_id in spec_ids]
    if not manifests:
        return set()
    wanted = EntryFilter(specs={i: SpecFilter(metadata.partition_type(i)) for i in spec_ids})
    columns = {"content", "spec_id"}
    return folded(scan.table.storage, spark, manifests, wanted, columns, EqualityDeleteSpecs).spec_ids


def _refuse_unfit(metadata: TableMetadata, spec_id: int) -> None:
    spec = metadata.specs_by_id.get(spec_id)
    if spec is None:
        raise NotFoundError(f"the table has no partition spec {spec_id} (option output-spec-id)", spec_id=spec_id)
    if spec.has_unknown_transform:
        raise UnsupportedError(
            f"option output-spec-id: partition spec {spec_id} has a transform that is not known; give another spec"
        )
