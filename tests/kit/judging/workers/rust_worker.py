"""iceberg-rust, by its Python package, read by DataFusion."""

from importlib.metadata import version

import pyarrow as pa
from answering import answer_requests
from datafusion import SessionContext
from pyiceberg_core.datafusion import IcebergDataFusionTable


def read(request: dict) -> pa.Table:
    context = SessionContext()
    table = IcebergDataFusionTable(
        identifier=["db", "t"], metadata_location=f"file://{request['metadata']}", file_io_properties={}
    )
    context.register_table("t", table)
    return context.sql("SELECT * FROM t").to_arrow_table()


if __name__ == "__main__":
    answer_requests(version("pyiceberg-core"), read, Exception)
