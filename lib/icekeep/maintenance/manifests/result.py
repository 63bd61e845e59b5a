"""The output columns of Iceberg's `rewrite_manifests`."""

import msgspec

from icekeep.maintenance.manifests.plan import RewriteManifestsPlan
from icekeep.spec.manifests.structs import ManifestFile


class RewriteManifestsResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many manifests were replaced by how many; sizes in bytes."""

    rewritten_manifests_count: int
    added_manifests_count: int
    rewritten_manifests_bytes: int
    added_manifests_bytes: int


def result(plan: RewriteManifestsPlan, added: tuple[ManifestFile, ...]) -> RewriteManifestsResult:
    """What a run that followed `plan` and wrote `added` did."""
    return RewriteManifestsResult(
        rewritten_manifests_count=plan.manifests_count,
        added_manifests_count=len(added),
        rewritten_manifests_bytes=plan.manifests_bytes,
        added_manifests_bytes=sum(m.manifest_length for m in added),
    )
