"""Which partition specs the manifests of some snapshots have, from as few manifest lists as tell."""

from collections.abc import Iterable

from icekeep.commit.manifests import ManifestReader
from icekeep.spec.snapshots import Snapshot


def used_spec_ids(spec_ids: Iterable[int], snapshots: Iterable[Snapshot], reader: ManifestReader) -> frozenset[int]:
    """Those of some partition specs that a manifest of any of the snapshots has.

    Manifest lists are read one after the other, until none of the specs is left to be found: so the more likely come first.
    """
    unseen = set(spec_ids)
    wanted = frozenset(unseen)
    for snapshot in snapshots:
        if not unseen:
            break
        unseen.difference_update(manifest.partition_spec_id for manifest in reader.manifests(snapshot))
    return wanted - unseen
