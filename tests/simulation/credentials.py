"""Credentials that a catalog hands out for a while: a store refuses whoever comes with others, or with those of yesterday."""

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, TypeVar

from icekeep.errors import IcekeepError
from icekeep.storage.vended import VendedProperties

if TYPE_CHECKING:
    from simulation.client import Client

T = TypeVar("T")
_TOKEN, _END = "s3.session-token", "s3.session-token-expires-at-ms"


class RefusedError(IcekeepError):
    """A store took no request with these credentials: whoever works beside a catalog that answers never sees it."""


class Credentials:
    """What the catalog hands out: for how long they hold, and whether it says so."""

    def __init__(self, random: Random) -> None:
        self.life_ms = random.choice([20_000, 60_000, 3_600_000])
        self._tells_end = random.random() < 0.5
        self._random = random
        self._ends_ms: dict[str, int] = {}

    def handed_out(self, now_ms: int) -> dict[str, str]:
        """New ones."""
        token = f"{self._random.getrandbits(64):016x}"
        self._ends_ms[token] = now_ms + self.life_ms
        return {_TOKEN: token} | ({_END: str(now_ms + self.life_ms)} if self._tells_end else {})

    def check(self, properties: Mapping[str, str], now_ms: int) -> None:
        """Raise `RefusedError` where they have ended."""
        if now_ms >= self._ends_ms[properties[_TOKEN]]:
            raise RefusedError("simulated: these credentials have ended")


class Wallet:
    """The credentials of one client, as a storage has them."""

    def __init__(self, client: "Client", credentials: Credentials) -> None:
        self._credentials, self._client = credentials, client
        first = credentials.handed_out(client.world.scheduler.now_ms)
        self._vended = VendedProperties(first, _Renewal(self), client)

    def ask(self, request: Callable[[], T]) -> T:
        """Make a request with what holds now."""

        def authorized() -> T:
            self._credentials.check(self._vended.current(), self._client.world.scheduler.now_ms)
            return request()

        try:
            return self._vended.ask(authorized, lambda error: isinstance(error, RefusedError))
        except RefusedError as error:
            self._client.world.refused(self._client.owner, error)
            raise

    def renewed(self) -> dict[str, str]:
        """One call to the catalog, that may fail as every other."""
        world = self._client.world
        world.seen["renewals of credentials"] += 1
        return self._client.request("renew", "", lambda: self._credentials.handed_out(world.scheduler.now_ms))


class _Renewal:
    def __init__(self, wallet: Wallet) -> None:
        self._wallet = wallet
        # Each process has its own, and no later one has the same.
        self.key = object()

    def properties(self) -> Mapping[str, str]:
        return self._wallet.renewed()
