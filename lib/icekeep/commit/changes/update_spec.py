"""Change how a table is partitioned."""

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.spec.definition_updates import LAST_ADDED, AddPartitionSpec, SetDefaultSpec
from icekeep.spec.evolution.partition_evolution import PartitionChange, evolve_spec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.updates import Update


class UpdateSpec(msgspec.Struct, frozen=True):
    """Changes of the default partition spec, in order; files that are there keep the spec that they were written with."""

    changes: tuple[PartitionChange, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        spec = evolve_spec(base, self.changes)
        if spec.spec_id == base.default_spec_id:
            return ()
        if spec.spec_id in base.specs_by_id:
            return (SetDefaultSpec(spec.spec_id),)
        return AddPartitionSpec(spec), SetDefaultSpec(LAST_ADDED)
