#!/usr/bin/env python3
"""Do kedge's files of lines load as tables?  metrics.jsonl, rollouts and samples (.zst too), by pyarrow and by datasets.

    python tools/oracle/load_dumps.py FILE...

Prints the schema of each; fails where one does not load, or where a column is of no one type. Development only; needs
pyarrow, datasets and the command zstd.
"""
import subprocess
import sys
import tempfile

import datasets
import pyarrow.json


def plain(path, folder):
    if not path.endswith(".zst"):
        return path
    out = f"{folder}/{path.split('/')[-1][:-4]}"
    with open(out, "wb") as f:
        subprocess.run(["zstd", "-dcq", path], stdout=f, check=True)
    return out


def main():
    datasets.disable_progress_bars()
    for path in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            lines = plain(path, folder)
            # small blocks: each must have the schema of the others
            options = pyarrow.json.ReadOptions(block_size=1 << 20)
            table = pyarrow.json.read_json(lines, read_options=options)
            loaded = datasets.load_dataset("json", data_files=lines, split="train", cache_dir=folder)
            assert loaded.num_rows == table.num_rows, path
            print(f"{path}: {table.num_rows} rows")
            for field in table.schema:
                print(f"    {field.name}: {field.type}")


main()
