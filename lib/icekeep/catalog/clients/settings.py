"""A catalog's properties as its client reads them: text, switches and numbers."""

import os
from collections.abc import Mapping

from icekeep.errors import ConfigError
from icekeep.secrets import masked, remember, server_address

SIGV4 = "rest.sigv4-enabled"
AUTH = "auth."
"""How PyIceberg's properties of a login begin that have a type."""

AUTH_TYPE = "auth.type"
KERBEROS = "hive.kerberos-authentication"
_SWITCHES = dict.fromkeys(("true", "yes", "on", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "off", "f", "n", "0"), False
)


class Settings:
    """The properties of the catalog `name`; one that makes no sense is a `ConfigError` that says which."""

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self.properties = properties
        remember(properties)

    def text(self, *keys: str) -> str | None:
        """The first of some properties that is there and not empty."""
        return next((self.properties[key] for key in keys if self.properties.get(key)), None)

    def switch(self, key: str, *, default: bool) -> bool:
        """Whether something is switched on."""
        given = self.text(key)
        if given is None:
            return default
        if given.lower() not in _SWITCHES:
            raise self._wrong(key, "true or false")
        return _SWITCHES[given.lower()]

    def count(self, key: str, default: int, least: int = 0) -> int:
        """A whole number."""
        given = self.text(key) or str(default)
        if not given.isdecimal() or int(given) < least:
            raise self._wrong(key, f"a whole number, {least} or more" if least else "a whole number")
        return int(given)

    def seconds_in_ms(self, key: str, default_ms: int) -> int:
        """A time that is given in seconds, in milliseconds."""
        given = self.text(key)
        try:
            return default_ms if given is None else max(0, round(float(given) * 1000))
        except (ValueError, OverflowError):
            raise self._wrong(key, "seconds") from None

    def file(self, key: str) -> str | None:
        """The path of a file on this machine."""
        given = self.text(key)
        if given is not None and not os.path.exists(given):
            raise self._wrong(key, "the path of a file on this machine; there is none")
        return given

    def address(self, key: str) -> str:
        """The address of a server, or of something on it; empty where it is not given."""
        given = (self.text(key) or "").strip()
        if given and server_address(given, ("http", "https")) is None:
            # The text may hold a password, so it is not repeated.
            raise ConfigError(
                f"catalogs.{self.name}.{key}", "is no address of a server; give http://HOST:PORT or https://HOST"
            )
        return given

    def _wrong(self, key: str, wanted: str) -> ConfigError:
        return ConfigError(f"catalogs.{self.name}.{key}", f"is {masked(key, self.properties[key])!r}; give {wanted}")
