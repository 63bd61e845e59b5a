"""What `airflow providers list` shows, and the assets that icekeep brings."""

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The entry point `apache_airflow_provider`; Airflow calls it whatever it is about to do, so it imports nothing."""
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
        "sensors": [{"integration-name": "Apache Iceberg", "python-modules": ["icekeep.airflow.sensors"]}],
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
                "handler": "icekeep.airflow.assets.sanitize_uri",
                "factory": "icekeep.airflow.assets.create_asset",
            }
        ],
    }
