"""The two tables of a catalog in a SQL database, as Iceberg's JdbcCatalog and PyIceberg's SqlCatalog make them."""

import sqlalchemy as sa

SCHEMA = sa.MetaData()
TABLES = sa.Table(
    "iceberg_tables",
    SCHEMA,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("table_namespace", sa.String(255), primary_key=True),
    sa.Column("table_name", sa.String(255), primary_key=True),
    sa.Column("metadata_location", sa.String(1000)),
    sa.Column("previous_metadata_location", sa.String(1000)),
    sa.Column("iceberg_type", sa.String(5)),
)
NAMESPACES = sa.Table(
    "iceberg_namespace_properties",
    SCHEMA,
    sa.Column("catalog_name", sa.String(255), primary_key=True),
    sa.Column("namespace", sa.String(255), primary_key=True),
    sa.Column("property_key", sa.String(255), primary_key=True),
    sa.Column("property_value", sa.String(1000)),
)
