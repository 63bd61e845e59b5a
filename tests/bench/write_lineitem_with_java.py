"""Iceberg Java in `.venv-java` writes a table of lineitem's rows: a data file of one row group for each file of rows."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pyspark.sql import SparkSession

from bench import rival

COLUMNS = """
    l_orderkey BIGINT NOT NULL, l_partkey BIGINT NOT NULL, l_suppkey BIGINT NOT NULL, l_linenumber INT NOT NULL,
    l_quantity DECIMAL(15, 2), l_extendedprice DECIMAL(15, 2), l_discount DECIMAL(15, 2), l_tax DECIMAL(15, 2),
    l_returnflag STRING, l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE,
    l_shipinstruct STRING, l_shipmode STRING, l_comment STRING
"""


def main() -> None:
    request, answer = rival.request(), rival.answering()
    builder = SparkSession.builder.appName("lineitem")
    for key, value in request["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    table = request["table"]
    spark.sql(f"""
        CREATE TABLE {table} ({COLUMNS}) USING iceberg TBLPROPERTIES (
            'format-version' = '2',
            'write.parquet.compression-codec' = 'zstd',
            'write.distribution-mode' = 'none',
            'write.parquet.row-group-size-bytes' = '{request["row_group_bytes"]}'
        )
    """)
    spark.read.parquet(request["rows"]).writeTo(table).append()
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('write.parquet.row-group-size-bytes')")
    [row] = spark.sql(f"SELECT count(*) FROM {table}").collect()
    answer({"rows": row[0]})
    spark.stop()


if __name__ == "__main__":
    main()
