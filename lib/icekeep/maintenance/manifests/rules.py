"""What a rewrite of manifests is asked for: arguments of Iceberg's `rewrite_manifests`, and ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.maintenance.exact_plans import GivenPlan
from icekeep.maintenance.manifests.matching import manifests_that_match
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.manifests.workload import sort_by_of_workload
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.requests import CommittingRequest, takes
from icekeep.planning.spark.session import refuse_encrypted
from icekeep.planning.transcode import PartitionPart, SortPart, sort_parts
from icekeep.settings import ALL, is_all
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN


class RewriteRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which manifests are to be rewritten, and how; `sort_by` and `workload` are not both given.

    A plan that was `given` says which, in place of the rest.
    """

    spec_ids: tuple[int, ...]
    where: str | Expression
    sort_by: tuple[str, ...] | None
    workload: tuple[str, ...]
    branch: str
    options: RewriteManifestsOptions
    given: GivenPlan | None = None

    def sort_of(self, metadata: TableMetadata, spec_id: int, content: ManifestContent) -> tuple[SortPart, ...]:
        """What the entries of a spec are clustered by; delete files by partitions alone, since bounds say nothing of them.

        Raises:
            NotFoundError: there is no such partition field or column, or the workload names one.
            UsageError: a name is there twice.
        """
        names: Sequence[str] | None = self.sort_by
        if self.workload:
            names = sort_by_of_workload(self.workload, metadata.schema, metadata.specs_by_id[spec_id])
        parts = sort_parts(names, metadata.partition_type(spec_id), metadata.schema)
        if content is ManifestContent.DATA:
            return parts
        named = [part for part in parts if isinstance(part, PartitionPart)]
        others = sort_parts(None, metadata.partition_type(spec_id), metadata.schema)
        return tuple(dict.fromkeys((*named, *others)))


class RewriteManifestsRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `rewrite_manifests`, which says what each means."""

    spec_id: int | str | None = None
    sort_by: Sequence[str] | str | None = None
    where: str | Expression = ALWAYS_TRUE
    workload: Sequence[str] | str = ()
    use_caching: bool = False
    branch: str = MAIN
    options: Mapping[str, Any] | RewriteManifestsOptions | None = None


@takes(RewriteManifestsRequest)
def check_arguments(metadata: TableMetadata, request: RewriteManifestsRequest) -> None:
    """Hold the arguments against the table, before anything is read; raises what `checked_rules` raises."""
    checked_rules(metadata, request)


def checked_rules(metadata: TableMetadata, request: RewriteManifestsRequest) -> RewriteRules:
    """What the arguments come to for a table, before anything is read.

    Raises:
        ExpressionError: `where` or a filter of the workload is none.
        NotFoundError: the table has no such spec, partition field or column.
        OptionError: an option does not exist or takes another value.
        UnsupportedError: the table is encrypted, or values of a column to sort by have no order.
        UsageError: `sort_by` is empty, or there is a workload as well.
    """
    sort_by, workload = request.sort_by, request.workload
    refuse_encrypted(metadata, "rewrite_manifests")
    manifests_that_match(request.where, (), metadata, 0)
    names = tuple(name.strip() for name in sort_by.split(",")) if isinstance(sort_by, str) else sort_by
    if names is not None and not all(names):
        raise UsageError(
            f"{argument('sort_by')} has an empty name; name partition fields or columns, separated by commas"
        )
    filters = workload.split(";") if isinstance(workload, str) else workload
    filters = [text.strip() for text in filters if text.strip()]
    if names is not None and filters:
        raise UsageError(f"{argument('sort_by')} and workload both say what to cluster by; give one of them")
    rules = RewriteRules(
        spec_ids=_spec_ids(metadata, request.spec_id),
        where=request.where,
        sort_by=None if names is None else tuple(names),
        workload=tuple(filters),
        branch=request.branch,
        options=parse_options(RewriteManifestsOptions, request.options or {}),
        given=request.given,
    )
    for one in rules.spec_ids:
        rules.sort_of(metadata, one, ManifestContent.DATA)
    return rules


def _spec_ids(metadata: TableMetadata, spec_id: int | str | None) -> tuple[int, ...]:
    if is_all(spec_id):
        return tuple(sorted(metadata.specs_by_id))
    if spec_id is None:
        return (metadata.default_spec_id,)
    try:
        number = int(spec_id)
    except ValueError:
        raise UsageError(
            f"{argument('spec_id')} is {spec_id!r}; give the number of a partition spec, or {ALL!r}"
        ) from None
    if number not in metadata.specs_by_id:
        specs = ", ".join(map(str, sorted(metadata.specs_by_id)))
        raise NotFoundError(
            f"the table at {metadata.location!r} has no partition spec {number}; it has {specs}", spec_id=number
        )
    return (number,)
