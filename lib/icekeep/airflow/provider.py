"""What `airflow providers list` shows, and tables as assets: `iceberg://CATALOG/NAMESPACE/TABLE`, the catalog as configured."""

from typing import Any
from urllib.parse import SplitResult, quote


def get_provider_info() -> dict[str, Any]:
    """The entry point `apache_airflow_provider`; Airflow calls it whatever it is about to do, so nothing of ours is imported."""
    return {
        "package-name": "icekeep",
        "name": "icekeep",
        "description": "Table maintenance for Apache Iceberg: DAGs from policies, by spark-submit or without Spark.",
        "integrations": [
            {
                "integration-name": "Apache Iceberg",
                "external-doc-url": "https://iceberg.apache.org/",
                "tags": ["apache"],
            }
        ],
        "operators": [
            {
                "integration-name": "Apache Iceberg",
                "python-modules": ["icekeep.airflow.job_operators", "icekeep.airflow.operators"],
            },
        ],
        "sensors": [{"integration-name": "Apache Iceberg", "python-modules": ["icekeep.airflow.due"]}],
        "triggers": [{"integration-name": "Apache Iceberg", "python-modules": ["icekeep.airflow.triggers"]}],
        "hooks": [{"integration-name": "Apache Iceberg", "python-modules": ["icekeep.airflow.connections"]}],
        "connection-types": [
            {
                "connection-type": "icekeep",
                "hook-class-name": "icekeep.airflow.connections.IcekeepHook",
                "hook-name": "Icekeep",
            }
        ],
        "extra-links": [
            "icekeep.airflow.links.RunbookLink",
            "icekeep.airflow.links.ReportLink",
            "icekeep.airflow.links.SparkLink",
        ],
        "asset-uris": [
            {
                "schemes": ["iceberg"],
                "handler": "icekeep.airflow.provider.sanitize_uri",
                "factory": "icekeep.airflow.provider.create_asset",
            }
        ],
    }


SCHEME = "iceberg"


def table_uri(table: str) -> str:
    """The URI of a table by its full name; a namespace of several levels has a part for each.

    >>> table_uri("prod.sales.eu.orders"), table_uri("prod.sales.`orders.raw`")
    ('iceberg://prod/sales/eu/orders', 'iceberg://prod/sales/orders.raw')
    """
    from icekeep.names import split_name

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
    from icekeep.names import full_name, split_name

    return Asset(uri=table_uri(full_name(catalog, (*split_name(namespace), table))), extra=extra)
