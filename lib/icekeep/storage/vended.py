"""Storage properties with credentials that a catalog hands out for a while, and hands out anew when it is asked.

Whoever opens files asks here for what holds now. Credentials are renewed a good while before they end, as far as the catalog
told when that is, and when a store refuses them. A value of this kind travels to Spark tasks and asks for itself there.
"""

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

from icekeep.errors import IcekeepError
from icekeep.runtime import Runtime
from icekeep.secrets import remember_while
from icekeep.spec.types import MINUTE_MS

T = TypeVar("T")

_EXPIRY = "s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms"
"""Properties in epoch milliseconds that say when credentials end; Azure's has the account's host behind it."""

_BESIDE = {
    "s3.access-key-id": "s3.session-token",
    "gcs.oauth2.token": "gcs.oauth2.token-expires-at",
    "adls.sas-token": "adls.sas-token-expires-at-ms",
}
"""By how names of credentials begin, how those begin that belong to them: of others they are wrong."""

_AHEAD_MS = 5 * MINUTE_MS
_AHEAD_SHARE = 4
"""Credentials are renewed this long before they end, or in the last fourth of a short life."""

_PAUSE_MS = 10_000
"""After a renewal that failed while the old credentials still hold, or that brought the same ones, or some that end at once."""

_IN_VAIN_PAUSE_MS = MINUTE_MS
"""After new credentials were refused like the old ones: then the store denies for another reason."""


class Renewal(Protocol):
    """Asks a catalog for a table's storage properties; can be pickled, and its text shows no secret.

    `key` is equal for what gets the same answers.
    """

    @property
    def key(self) -> Hashable:
        """See above."""

    def properties(self) -> Mapping[str, str]:
        """What the catalog hands out now; raises `IcekeepError` where it does not."""


class VendedProperties:
    """What a catalog handed out, renewed when it is about to end; used by many threads."""

    def __init__(self, properties: Mapping[str, str], renewal: Renewal, runtime: Runtime) -> None:
        self._renewal = renewal
        self._runtime = runtime
        self._lock = threading.Lock()
        self._next_ms = 0
        self._in_vain_until_ms = 0
        self._held = _VendedCredentials(dict(properties), runtime.now_ms())
        # What is under way goes on with the credentials before, whose text stays secret so long.
        self._before = self._held

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def current(self) -> Mapping[str, str]:
        """The properties, renewed if they are about to end; a renewal that fails is tried again later."""
        return self._current().properties

    def ask(self, request: Callable[[], T], is_refusal: Callable[[BaseException], bool]) -> T:
        """Do something that uses `current`, and once more with new credentials where it fails as if they had ended.

        Raises:
            IcekeepError: the catalog does not renew them.
        """
        used = self._current()
        try:
            return request()
        except Exception as error:
            if not is_refusal(error) or not self._renewed_after(used):
                raise
        try:
            return request()
        except Exception as error:
            if is_refusal(error):
                with self._lock:
                    self._in_vain_until_ms = self._runtime.now_ms() + _IN_VAIN_PAUSE_MS
            raise

    def _current(self) -> "_VendedCredentials":
        with self._lock:
            self._adopt()
            now_ms = self._runtime.now_ms()
            if self._held.ends_soon(now_ms) and now_ms >= self._next_ms:
                try:
                    self._renew()
                    if self._held.ends_soon(now_ms):
                        # By our clock; the store's may say otherwise, and the catalog has no better ones.
                        self._next_ms = now_ms + _PAUSE_MS
                except IcekeepError:
                    # They hold for a while yet; once a store refuses them, the error is raised. A catalog that takes
                    # minutes not to answer is not asked more than half of the time.
                    took_ms = self._runtime.now_ms() - now_ms
                    self._next_ms = self._runtime.now_ms() + max(_PAUSE_MS, took_ms)
            return self._held

    def _renewed_after(self, used: "_VendedCredentials") -> bool:
        """Whether there are other credentials than those that were refused."""
        with self._lock:
            now_ms = self._runtime.now_ms()
            if self._held is used and now_ms >= self._in_vain_until_ms:
                self._renew()
                if self._held.properties == used.properties:
                    self._in_vain_until_ms = now_ms + _PAUSE_MS
            return self._held.properties != used.properties

    def _renew(self) -> None:
        fresh = self._renewal.properties()
        stale = tuple(beside for given, beside in _BESIDE.items() if any(name.startswith(given) for name in fresh))
        kept = {name: value for name, value in self._held.properties.items() if not name.startswith(stale)}
        self._before, self._held = self._held, _VendedCredentials({**kept, **fresh}, self._runtime.now_ms())
        _newest.pop(self._renewal.key, None)
        _newest[self._renewal.key] = self._held
        for key in [*_newest][:-_NEWEST_MAX]:
            _newest.pop(key, None)

    def _adopt(self) -> None:
        """Take what an earlier task of this process, or another table value, has got since."""
        newest = _newest.get(self._renewal.key)
        if newest is not None and newest.obtained_ms > self._held.obtained_ms:
            self._before, self._held = self._held, newest


class _VendedCredentials:
    """Properties and when they were handed out, epoch milliseconds."""

    def __init__(self, properties: Mapping[str, str], obtained_ms: int) -> None:
        self.properties = properties
        self.obtained_ms = obtained_ms
        remember_while(self, properties)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        remember_while(self, self.properties)

    def ends_soon(self, now_ms: int) -> bool:
        ends = [int(text) for name, text in self.properties.items() if name.startswith(_EXPIRY) and text.isdecimal()]
        if not ends:
            return False
        ahead_ms = min(_AHEAD_MS, max(0, min(ends) - self.obtained_ms) // _AHEAD_SHARE)
        return now_ms >= min(ends) - ahead_ms


_NEWEST_MAX = 1000
"""A process that lives for weeks meets tables without end; one that is left out costs a request."""

_newest: dict[Hashable, _VendedCredentials] = {}
"""What this process was handed out last, by the key of its renewal, the latest last: a worker of Spark's does many tasks."""
