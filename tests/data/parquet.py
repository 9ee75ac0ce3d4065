#!/usr/bin/env python3
"""Files for the plug-in `parquet`, by pyarrow 26.0.1: 10 rows in groups of 4, row r of column c being r * 10 + c, and every
third one missing in `maybe`.

    python tests/data/parquet.py        # writes tests/data/parquet
"""
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent / "parquet"
TYPES = {"i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(), "flag": pa.bool_(),
         "maybe": pa.float64(), "text": pa.string(), "list": pa.list_(pa.int64())}


def value(row, at, name):
    number = row * 10 + at
    if name == "maybe" and row % 3 == 0:
        return None
    return {"flag": row % 2 == 1, "text": str(number), "list": [number]}.get(name, number)


def main():
    FOLDER.mkdir(exist_ok=True)
    columns = [pa.array([value(row, at, name) for row in range(10)], kind) for at, (name, kind) in enumerate(TYPES.items())]
    table = pa.table(columns, names=list(TYPES))
    for compression in ("snappy", "gzip", "lz4", "none", "zstd"):
        pq.write_table(table, FOLDER / f"{compression}.parquet", compression=compression, row_group_size=4)


if __name__ == "__main__":
    main()
