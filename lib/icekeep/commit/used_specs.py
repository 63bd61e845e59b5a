"""Which partition specs the manifests of some snapshots have, from as few manifest lists as tell."""

from collections.abc import Iterable, Sequence

from icekeep.commit.manifests import ManifestReader
from icekeep.spec.bins import growing
from icekeep.spec.snapshots import Snapshot


def used_spec_ids(spec_ids: Iterable[int], snapshots: Sequence[Snapshot], reader: ManifestReader) -> frozenset[int]:
    """Those of some partition specs that a manifest of any of the snapshots has.

    More and more manifest lists are read, until none of the specs is left to be found: so the more likely come first.
    """
    unseen = set(spec_ids)
    wanted = frozenset(unseen)
    for some in growing(snapshots):
        if not unseen:
            break
        unseen -= reader.spec_ids(some)
    return wanted - unseen
