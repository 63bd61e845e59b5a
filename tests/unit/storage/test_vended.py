"""Credentials that a catalog hands out are renewed before they end, and when they are refused."""

import gc
import pickle

import pytest

from icekeep import secrets
from icekeep.errors import UnavailableError
from icekeep.secrets import without_secrets
from icekeep.storage import vended
from icekeep.storage.vended import VendedProperties
from kit.runtime import START_MS, FakeRuntime

HOUR_MS = 3_600_000
EXPIRY = "s3.session-token-expires-at-ms"


class Refused(Exception):
    pass


class Server:
    """Hands out a token with a number; `key` is its own, so that tests do not share what a process remembers."""

    def __init__(self, runtime, life_ms=HOUR_MS, expiry=EXPIRY, name="secret"):
        self.name = name
        self.runtime, self.life_ms, self.expiry, self.count, self.fails, self.key = (
            runtime,
            life_ms,
            expiry,
            0,
            False,
            id(self),
        )

    def properties(self):
        if self.fails:
            raise UnavailableError("the catalog is away")
        self.count += 1
        ends = {self.expiry: str(self.runtime.now_ms() + self.life_ms)} if self.life_ms else {}
        return {"token": f"{self.name}{self.count}", **ends}


@pytest.fixture
def runtime():
    return FakeRuntime()


def held(server, runtime):
    return VendedProperties({"region": "r", **server.properties()}, server, runtime)


@pytest.mark.parametrize("expiry", [EXPIRY, "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms.a.dfs.x"])
def test_credentials_are_renewed_five_minutes_before_they_end(runtime, expiry):
    server = Server(runtime, expiry=expiry)
    mine = held(server, runtime)
    runtime.pass_ms(HOUR_MS - 301_000)
    assert mine.current()["token"] == "secret1"
    runtime.pass_ms(1_000)
    assert mine.current() == {"region": "r", "token": "secret2", expiry: str(runtime.now_ms() + HOUR_MS)}
    assert server.count == 2


@pytest.mark.parametrize("travels", [False, True])
def test_vended_credentials_masked_while_held(runtime, travels):
    """Stores quote their requests; credentials that are renewed for weeks must not pile up."""
    before = len(secrets._held)
    server = Server(runtime, name="passing")
    mine = held(server, runtime)
    if travels:
        mine = pickle.loads(pickle.dumps(mine))
        runtime = mine._runtime
    for number in range(1, 50):
        assert without_secrets(f"denied: passing{number}!") == "denied: ******!"
        runtime.pass_ms(HOUR_MS)
        mine.current()
        assert without_secrets(f"late: passing{number}!") == "late: ******!"
    gc.collect()
    assert without_secrets("passing17!") == "passing17!"
    assert len(secrets._held) <= before + 2


def test_vended_credentials_of_many_tables_do_not_pile_up(runtime, monkeypatch):
    monkeypatch.setattr(vended, "_NEWEST_MAX", 3)
    monkeypatch.setattr(vended, "_newest", {})
    servers = [Server(runtime) for _ in range(5)]
    all_held = [held(server, runtime) for server in servers]
    runtime.pass_ms(HOUR_MS)
    for mine in all_held:
        mine.current()
    assert [*vended._newest] == [server.key for server in servers[2:]]


def test_short_lives_are_used_for_the_most_part(runtime):
    server = Server(runtime, life_ms=20_000)
    mine = held(server, runtime)
    for _ in range(60):
        runtime.pass_ms(1_000)
        ends_ms = int(mine.current()[EXPIRY])
        assert ends_ms > runtime.now_ms()
    assert server.count == 1 + 60 // 15


def test_credentials_without_expiry_are_renewed_when_refused(runtime):
    server = Server(runtime, life_ms=0)
    mine = held(server, runtime)
    runtime.pass_ms(100 * HOUR_MS)
    assert mine.current()["token"] == "secret1"
    tried = []

    def request():
        tried.append(mine.current()["token"])
        if tried[-1] == "secret1":
            raise Refused
        return "done"

    assert mine.ask(request, lambda error: isinstance(error, Refused)) == "done"
    assert tried == ["secret1", "secret2"]


def test_other_refusals_are_not_retried_endlessly(runtime):
    server = Server(runtime)
    mine = held(server, runtime)

    def request():
        raise Refused

    for _ in range(10):
        with pytest.raises(Refused):
            mine.ask(request, lambda error: isinstance(error, Refused))
    assert server.count == 2
    with pytest.raises(ValueError, match="other"):
        mine.ask(lambda: int("other"), lambda error: isinstance(error, Refused))


def test_renewal_fails_only_once_credentials_are_refused(runtime):
    server = Server(runtime)
    mine = held(server, runtime)
    runtime.pass_ms(HOUR_MS - 60_000)
    server.fails = True
    assert mine.current()["token"] == "secret1"

    def request():
        raise Refused

    runtime.pass_ms(11_000)
    with pytest.raises(UnavailableError, match="the catalog is away"):
        mine.ask(request, lambda error: isinstance(error, Refused))
    server.fails = False
    runtime.pass_ms(11_000)
    assert mine.current()["token"] == "secret2"


class Travelling:
    """A renewal that is found again by its key, as in another process."""

    key = "travelling"

    def properties(self):
        return {"token": f"secret{Travelling.number}", EXPIRY: str(START_MS + HOUR_MS * Travelling.number)}

    number = 1


def test_tasks_of_a_process_share_renewed_credentials(runtime, monkeypatch):
    monkeypatch.setattr(vended, "_newest", {})
    sent = pickle.dumps(VendedProperties(Travelling().properties(), Travelling(), runtime))
    first, second = pickle.loads(sent), pickle.loads(sent)
    for copy in (first, second):
        copy._runtime.pass_ms(HOUR_MS)
    Travelling.number = 2
    assert first.current()["token"] == "secret2"
    Travelling.number = 3
    assert second.current()["token"] == "secret2"


def test_its_text_shows_no_secret(runtime):
    mine = held(Server(runtime), runtime)
    assert "secret" not in f"{mine!r} {mine} {mine._held!r}"


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, 2 * HOUR_MS])
def test_short_credentials_are_not_renewed_each_time(runtime, ahead_ms):
    server = Server(runtime, life_ms=HOUR_MS - ahead_ms or -1)
    mine = held(server, runtime)
    for _ in range(100):
        mine.current()
    assert server.count == 2
    runtime.pass_ms(10_000)
    mine.current()
    assert server.count == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c", EXPIRY: str(START_MS)},
            {"s3.access-key-id": "d", "s3.secret-access-key": "e"},
        ),
        ({"gcs.oauth2.token": "a", "gcs.oauth2.token-expires-at": str(START_MS)}, {"gcs.oauth2.token": "b"}),
        (
            {"adls.sas-token.x.dfs": "a", "adls.sas-token-expires-at-ms.x.dfs": str(START_MS)},
            {"adls.sas-token.x.dfs": "b"},
        ),
    ],
)
def test_nothing_of_the_old_credentials_stays_beside_new_ones(runtime, before, after):
    """A server that is configured anew gives keys without a token, which stores refuse with one of other keys."""
    server = Server(runtime)
    server.properties = lambda: after
    assert VendedProperties({"s3.region": "r", **before}, server, runtime).current() == {"s3.region": "r", **after}


def test_credentials_stay_whole_where_none_are_renewed(runtime):
    server = Server(runtime)
    server.properties = lambda: {"s3.region": "new"}
    before = {"s3.access-key-id": "a", "s3.session-token": "c", EXPIRY: str(START_MS)}
    assert VendedProperties(before, server, runtime).current() == {**before, "s3.region": "new"}
