"""Tables as assets of Airflow: `iceberg://CATALOG/NAMESPACE/TABLE`, the catalog as icekeep's configuration calls it."""

from typing import Any
from urllib.parse import SplitResult, quote

from icekeep.names import full_name, split_name

SCHEME = "iceberg"


def table_uri(table: str) -> str:
    """The URI of a table by its full name; a namespace of several levels has a part for each.

    >>> table_uri("prod.sales.eu.orders"), table_uri("prod.sales.`orders.raw`")
    ('iceberg://prod/sales/eu/orders', 'iceberg://prod/sales/orders.raw')
    """
    catalog, *parts = split_name(table)
    return f"{SCHEME}://{quote(catalog, safe='')}/{'/'.join(quote(part, safe='') for part in parts)}"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """What Airflow asks of each URI of the scheme; raises `ValueError` where it names no table."""
    parts = uri.path.strip("/").split("/")
    if not uri.netloc or len(parts) < 2 or not all(parts):
        raise ValueError("an asset of a table is iceberg://CATALOG/NAMESPACE/TABLE")
    return uri._replace(path=f"/{'/'.join(parts)}")


def create_asset(*, catalog: str, namespace: str, table: str, extra: Any = None) -> Any:
    """The asset of a table by its bare name; `namespace` has a dot between its levels, and quotes around one with a dot."""
    from icekeep.airflow.versions import Asset

    return Asset(uri=table_uri(full_name(catalog, (*split_name(namespace), table))), extra=extra)
