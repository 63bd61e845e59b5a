"""What commands import when its turn has come, as "module:function", so that help and mistakes need neither Spark nor Arrow.

Tests put fakes in its place.
"""

import msgspec


class Seams(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of the world, as "module:function"; tests name fakes.

    `build_own_session` is for a process that belongs to the command alone; `None`: as for any other.
    """

    load_table: str
    build_session: str
    stop_session: str
    cancel_jobs: str
    live_properties: str
    open_catalog: str = "icekeep.operations.loading:open_settings"
    build_own_session: str | None = None

    def of_own_process(self) -> "Seams":
        """The same in a process that belongs to the command alone."""
        return msgspec.structs.replace(self, build_session=self.build_own_session or self.build_session)


# All that is imported late, when its turn has come: help and mistakes answer at once and need no Spark.
SEAMS = Seams(
    load_table="icekeep.operations.loading:load_table",
    build_session="icekeep.planning.spark.session:build_session",
    build_own_session="icekeep.planning.spark.own_session:build_own_session",
    stop_session="icekeep.planning.spark.session:stop_session",
    cancel_jobs="icekeep.planning.spark.session:cancel_jobs",
    live_properties="icekeep.planning.spark.session:live_properties",
)
