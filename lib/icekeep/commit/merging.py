"""Merge the manifests of a table when too many have piled up, as part of a commit that adds one more.

Properties `commit.manifest-merge.enabled` (true), `commit.manifest.min-count-to-merge` (100) and
`commit.manifest.target-size-bytes` (8 MB). Manifests are packed in the order of the list, the oldest bins first, so that
what was merged once stays as it is and the newest bin is the one that grows.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.spec.bins import packed
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.table_properties import boolean_property, whole_number

ENABLED = "commit.manifest-merge.enabled"
MIN_COUNT = "commit.manifest.min-count-to-merge"
_MIN_COUNT_DEFAULT = 100


class MergePolicy(msgspec.Struct, frozen=True):
    """When manifests are merged: bins of about `target_bytes`; the newest bin only once it has `min_count` manifests."""

    min_count: int
    target_bytes: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "MergePolicy | None":
        """What a table's properties say, `None` where they turn merging off; raises `PropertyError` where they are wrong."""
        properties = metadata.properties
        if not boolean_property(properties, ENABLED, default=True):
            return None
        # Of fewer than two none is merged, whatever a number below that says.
        return cls(whole_number(properties, MIN_COUNT, _MIN_COUNT_DEFAULT, least=None), manifest_target_bytes(metadata))


def merged(manifests: Sequence[ManifestFile], attempt: Attempt) -> list[ManifestFile]:
    """The manifests of one kind of a new snapshot, newest first, with those merged that its table wants merged.

    Only manifests of one partition spec are merged (`filtering.MergeManifests`). Those that hold what we do not know, the
    values of a transform or fields of their own, stay as they are: merged they would lose it. So do those whose spec the table
    has lost.
    """
    policy = MergePolicy.of(attempt.base)
    if policy is None or not manifests:
        return list(manifests)
    by_spec: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        by_spec[manifest.partition_spec_id, manifest.content].append(manifest)
    out: list[ManifestFile] = []
    for (spec_id, content), group in by_spec.items():
        spec = attempt.base.specs_by_id.get(spec_id)
        is_known = spec is not None and not spec.has_unknown_transform
        for bin_ in _bins_from_the_end(group, policy.target_bytes):
            is_newest = manifests[0] in bin_
            if is_known and len(bin_) > 1 and (not is_newest or len(bin_) >= policy.min_count):
                out += _merged(bin_, spec_id, content, attempt)
            else:
                out += bin_
    return out


def _merged(
    manifests: Sequence[ManifestFile], spec_id: int, content: ManifestContent, attempt: Attempt
) -> list[ManifestFile]:
    known = [m for m in manifests if not attempt.reader.header(m).unknown_field_ids]
    left_alone = [m for m in manifests if m not in known]
    return [*(attempt.merged(known, spec_id, content) if len(known) > 1 else known), *left_alone]


def _bins_from_the_end(manifests: Sequence[ManifestFile], target_bytes: int) -> list[list[ManifestFile]]:
    """Neighbours in bins of at most the target, filled from the oldest on; bins and manifests stay in their order."""
    bins = [*packed(reversed(manifests), (lambda m: m.manifest_length, target_bytes))]
    return [bin_[::-1] for bin_ in reversed(bins)]
