"""polars with its own planner and reader of Iceberg."""

import polars
import pyarrow as pa
from answering import answer_requests


def read(request: dict) -> pa.Table:
    return polars.scan_iceberg(f"file://{request['metadata']}", reader_override="native").collect().to_arrow()


if __name__ == "__main__":
    answer_requests(polars.__version__, read, Exception)
