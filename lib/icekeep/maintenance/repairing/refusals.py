"""Why one mend is not planned beside another on the same branch."""

from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.spec.manifests.structs import ManifestFile


def refuse_doubled(head: Head, row: ManifestFile) -> None:
    """Raise `CannotMendError` for a manifest in which files are doubled, that is listed twice, or is misnumbered."""
    if row.manifest_path in head.untouchable:
        raise CannotMendError(f"files are doubled in manifest {row.manifest_path!r}: mend faults 212 and 220 first")
    refuse_misnumbered(head, row)


def refuse_misnumbered(head: Head, row: ManifestFile) -> None:
    """Raise `CannotMendError` for a manifest whose entries would be written with a sequence number that is not theirs."""
    if row.manifest_path in head.misnumbered:
        raise CannotMendError(
            f"the list says wrongly what sequence number the entries of manifest {row.manifest_path!r} inherit, and written anew "
            "they would have it for good: see fault 208"
        )


def refuse_merged(head: Head, place: Place) -> None:
    """Raise `CannotMendError` for the entry of a delete file in whose place a new one comes."""
    if place.key in head.work.merged:
        raise CannotMendError("a new delete file takes its place in the same run; run the repair again afterwards")


def refuse_described(head: Head, place: Place) -> None:
    """Raise `CannotMendError` for an entry that is described anew, or goes."""
    if place.key in head.work.entries:
        raise CannotMendError("its entry is described anew in the same run, or goes; run the repair again afterwards")
