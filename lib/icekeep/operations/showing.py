"""What `icekeep config show` tells: each property of each catalog with its source, and the policies; secrets masked."""

import re
from collections.abc import Iterable

import msgspec

from icekeep.operations.config import CatalogSettings
from icekeep.policies.values import Policy

MASK = "******"

_SECRET_WORDS = (
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    "authorization",
    "api-key",
    "account-key",
    "sas",
)
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_USER_INFO = re.compile(r"(?<=://)([^/?#:@\s]*):[^/?#\s]*@")
_PARAMETER = re.compile(r"([?&;][^=&;]*(?:secret|password|passwd|token|credential|sig)[^=&;]*=)[^&;]*", re.IGNORECASE)


class PropertyShown(msgspec.Struct, frozen=True):
    """One property of a catalog."""

    catalog: str
    key: str
    value: str
    source: str


class PolicyShown(msgspec.Struct, frozen=True):
    """One policy; `jobs` in the order in which they run on each table, `match` and `excepted` as they were written."""

    policy: str
    schedule: str | None
    tables: tuple[str, ...]
    match: tuple[str, ...]
    excepted: tuple[str, ...]
    jobs: tuple[str, ...]


class ConfigShown(msgspec.Struct, frozen=True):
    """The configuration as it would be used; references to environment variables stay unresolved."""

    conf: str | None
    properties: tuple[PropertyShown, ...]
    policies: tuple[PolicyShown, ...]


def show_config(conf: str | None, catalogs: Iterable[CatalogSettings], policies: Iterable[Policy]) -> ConfigShown:
    """The report on a configuration, by catalog and key."""
    properties = [
        PropertyShown(settings.name, key, masked(key, settings.properties[key]), settings.sources[key])
        for settings in catalogs
        for key in sorted(settings.properties)
    ]
    shown = [_policy(policy) for policy in policies]
    return ConfigShown(conf, tuple(properties), tuple(shown))


def _policy(policy: Policy) -> PolicyShown:
    match, excepted = (tuple(glob.text for glob in globs) for globs in (policy.match, policy.excepted))
    return PolicyShown(
        policy.name, policy.schedule, policy.tables, match, excepted, tuple(call.job for call in policy.calls)
    )


def masked(key: str, value: str) -> str:
    """A property's value without what nobody should read over a shoulder; references to variables are no secrets.

    >>> masked("token", "abc"), masked("token", "${TOKEN}"), masked("uri", "postgresql://me:pw@db/x")
    ('******', '${TOKEN}', 'postgresql://me:******@db/x')
    """
    if _REFERENCE.fullmatch(value):
        return value
    if any(word in key.lower().replace("_", "-").replace(".", "-") for word in _SECRET_WORDS):
        return MASK
    return _PARAMETER.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1:{MASK}@", value))
