"""The manifests that would come of many entries, told by a survey: how they would be cut, and each part's partitions."""

from collections.abc import Sequence

from icekeep.maintenance.manifests.candidates import ManifestGroup, ManifestRun
from icekeep.maintenance.manifests.survey import Weight, cut_weights
from icekeep.spec.manifests.structs import ManifestFile, PartitionSummarizer
from icekeep.spec.manifests.write import PartitionCodec


def expected_manifests(group: ManifestGroup, run: ManifestRun, weights: Sequence[Weight]) -> list[ManifestFile]:
    """Manifests without paths, of lengths as the old ones let expect; `weights` are those of the run's entries."""
    stored_bytes = sum(m.manifest_length for m in run.manifests)
    parts = cut_weights(weights, run.expected_count)
    entries_count = max(1, sum(weight.count for part in parts for weight in part))
    codec = PartitionCodec(run.target.partition)
    expected = []
    for part in parts:
        summarizer = PartitionSummarizer([field.type for field in run.target.partition.fields])
        for key in {weight.partition for weight in part}:
            summarizer.add(codec.decode(key))
        count = sum(weight.count for weight in part)
        expected.append(
            ManifestFile(
                manifest_path="",
                manifest_length=stored_bytes * count // entries_count,
                partition_spec_id=group.spec_id,
                added_snapshot_id=None,
                content=group.content,
                added_files_count=0,
                existing_files_count=count,
                deleted_files_count=0,
                partitions=summarizer.summaries(),
            )
        )
    return expected
