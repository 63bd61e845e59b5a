"""The options of `rewrite_manifests`."""

from msgspec import field

from icekeep.maintenance.options import Options


class RewriteManifestsOptions(Options, frozen=True, kw_only=True):
    """All are icekeep's own; Iceberg's procedure has none.

    Attributes:
        remove_dangling_deletes: leave out delete files that reach no live data file.
    """

    remove_dangling_deletes: bool = field(name="remove-dangling-deletes", default=False)
