"""A catalog from a connection of Airflow, of type `icekeep`: its properties and secrets, as a job gets them.

The job reads a configuration in which each value is a reference to a variable of its process. So the values themselves are in no
file, on no command line, in no template and in no log.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from icekeep.airflow.installation import Installation
from icekeep.airflow.versions import AirflowFailException, BaseHook, mask_secret
from icekeep.errors import UsageError
from icekeep.operations.configuration.documents import with_mapping
from icekeep.operations.configuration.file import is_catalog_name
from icekeep.secrets import is_secret
from icekeep.settings import CATALOG_TYPES

_VARIABLE = "ICEKEEP_CONNECTION_"
_CONFIGURATION = "icekeep.yaml"


class IcekeepHook(BaseHook):
    """The catalog that a connection describes.

    Its `schema` is the catalog's name, as tables have it (CATALOG.NAMESPACE.TABLE), `host` the property `uri`, and `extra` all
    other properties as JSON, `type` with them. A password is the property `token`, or with a login `credential`.

    Args:
        icekeep_conn_id: the id of the connection.
    """

    conn_name_attr = "icekeep_conn_id"
    default_conn_name = "icekeep_default"
    conn_type = "icekeep"
    hook_name = "Icekeep"

    def __init__(self, icekeep_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.icekeep_conn_id = icekeep_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """How Airflow's form shows the fields."""
        return {
            "hidden_fields": ["port"],
            "relabeling": {"schema": "Catalog", "host": "URI", "extra": "Catalog properties (JSON)"},
            "placeholders": {"schema": "prod", "extra": '{"type": "rest", "warehouse": "s3://lake"}'},
        }

    def get_conn(self) -> tuple[str, dict[str, str]]:
        """The catalog's name and its properties; raises `UsageError`, without any value, where the connection describes none."""
        found = self.get_connection(self.icekeep_conn_id)
        try:
            name, properties = _catalog(found)
        except UsageError as error:
            raise UsageError(f"connection {self.icekeep_conn_id!r}: {error.message}") from None
        for key, value in properties.items():
            if is_secret(key):
                mask_secret(value)
        return name, properties


@contextmanager
def connected(conn_id: str | None, installation: Installation) -> Iterator[Installation]:
    """The installation with a configuration that has the catalog of a connection; without a connection as it is.

    The configuration and the variables to which it refers are there in here alone.

    Raises:
        AirflowFailException: the connection describes no catalog, or the configuration already has one of that name.
    """
    if conn_id is None:
        yield installation
        return
    try:
        name, properties = IcekeepHook(conn_id).get_conn()
        variables = {f"{_VARIABLE}{number}": value for number, value in enumerate(properties.values())}
        references = {key: f"${{{variable}}}" for key, variable in zip(properties, variables, strict=True)}
        text = with_mapping(installation.conf, "catalogs", name, references)
    except UsageError as error:
        raise AirflowFailException(error.message) from None
    with TemporaryDirectory(prefix="icekeep-") as directory:
        conf = Path(directory) / _CONFIGURATION
        conf.write_text(text, encoding="utf-8")
        os.environ.update(variables)
        try:
            yield msgspec.structs.replace(installation, conf=str(conf))
        finally:
            for variable in variables:
                os.environ.pop(variable, None)


def _catalog(found: Any) -> tuple[str, dict[str, str]]:
    name = found.schema or ""
    if not is_catalog_name(name):
        raise UsageError(
            "the field Catalog (schema) is no catalog's name; give letters, digits, dashes and underscores"
        )
    properties = _extra(found.extra)
    given = {"uri": found.host, ("credential" if found.login else "token"): _login(found)}
    for key, value in given.items():
        if value and key in properties:
            raise UsageError(f"property {key!r} is given twice, by a field and in extra; leave one out")
    properties |= {key: value for key, value in given.items() if value}
    if not properties.get("type"):
        raise UsageError(f'extra has no "type"; give one of {", ".join(CATALOG_TYPES)}, such as {{"type": "rest"}}')
    return name, properties


def _login(found: Any) -> str:
    if found.login and not found.password:
        raise UsageError("there is a login and no password; give both, or neither")
    return f"{found.login}:{found.password}" if found.login else str(found.password or "")


def _extra(text: str | None) -> dict[str, str]:
    try:
        extra = json.loads(text or "{}")
    except ValueError:
        # Its own words would hold a part of the text.
        raise UsageError("extra is not JSON") from None
    if not isinstance(extra, Mapping):
        raise UsageError("extra is no JSON object of catalog properties")
    for key, value in extra.items():
        if not isinstance(value, str | int | float):
            raise UsageError(f"property {key!r} of extra is neither a text nor a number nor true or false")
    return {key: json.dumps(value) if not isinstance(value, str) else value for key, value in extra.items()}
