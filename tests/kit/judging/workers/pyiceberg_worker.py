"""PyIceberg."""

import pyarrow as pa
import pyiceberg
from answering import answer_requests
from pyiceberg.table import StaticTable


def read(request: dict) -> pa.Table:
    return StaticTable.from_metadata(f"file://{request['metadata']}").scan().to_arrow()


if __name__ == "__main__":
    answer_requests(pyiceberg.__version__, read, Exception)
