"""What work costs in money, by prices that somebody configures: there are none of ours."""

from typing import Annotated

import msgspec
from msgspec import Meta

from icekeep.spec.types import GIB, HOUR_MS

_MILLION = 1_000_000

Price = Annotated[float, Meta(ge=0)]


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a cluster and a store; what is not given costs nothing.

    Attributes:
        core_hour: of one core for an hour.
        gib_read, gib_written: of 1 GiB from and to storage.
        million_requests: of a million requests of storage.
        gib_month: of 1 GiB that lies in storage for a month.
        currency: how amounts are shown.
    """

    core_hour: Price = 0.0
    gib_read: Price = 0.0
    gib_written: Price = 0.0
    million_requests: Price = 0.0
    gib_month: Price = 0.0
    currency: Annotated[str, Meta(pattern=r"\S")] = "USD"

    def cost(self, *, cpu_ms: int, read_bytes: int, written_bytes: int, requests_count: int) -> float:
        """What some work costs.

        >>> Prices(core_hour=0.05).cost(cpu_ms=7_200_000, read_bytes=0, written_bytes=0, requests_count=0)
        0.1
        """
        return (
            cpu_ms / HOUR_MS * self.core_hour
            + read_bytes / GIB * self.gib_read
            + written_bytes / GIB * self.gib_written
            + requests_count / _MILLION * self.million_requests
        )
