"""Writes tests/data/parquet: small Parquet files of pyarrow, DuckDB and polars, and the rows that pyarrow
reads from them (one file for those that begin alike), as JSON lines in the spelling that src/data/parquet.h promises.

    python3 tools/oracle/make_parquet.py tests/data/parquet VERL_DIGIT_LLAMA
    python3 tools/oracle/make_parquet.py --compare ./kedge FILE...
    python3 tools/oracle/make_parquet.py --random ./kedge COUNT SEED
    python3 tools/oracle/make_parquet.py --seeds tests/fuzz/parquet

VERL_DIGIT_LLAMA is the folder of verl's digit completion example, whose two files are copied. --compare has
`kedge data convert` read each file, and compares every row with pyarrow's. --random makes tables of random nesting,
types and encodings and compares with what was written (pyarrow itself cannot read a few of them). --seeds writes the
small files that the fuzzer starts from.
"""

import datetime
import decimal
import json
import math
import pathlib
import random
import subprocess
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIGITS = {"s": 3, "ms": 3, "us": 6, "ns": 9}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def clock(units, unit):
    """units since midnight"""
    one = PER_SECOND[unit]
    s, rest = divmod(units, one)
    rest *= 10 ** DIGITS[unit] // one
    return f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}.{rest:0{DIGITS[unit]}}"


def day(days):
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()


def number(x):
    if math.isnan(x):
        return "nan"
    return x if math.isfinite(x) else ("inf" if x > 0 else "-inf")


def spell(v, t):
    """A value of pyarrow as the JSON that kedge gives."""
    if not v.is_valid:
        return None
    if pa.types.is_struct(t):
        return {t.field(i).name: spell(v[t.field(i).name], t.field(i).type) for i in range(t.num_fields)}
    if pa.types.is_map(t):
        pairs = [(k, x) for k, x in zip(v.values.field(0), v.values.field(1))]
        if pa.types.is_string(t.key_type):
            return {k.as_py(): spell(x, t.item_type) for k, x in pairs}
        return [{"key": spell(k, t.key_type), "value": spell(x, t.item_type)} for k, x in pairs]
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return [spell(x, t.value_type) for x in v.values]
    if pa.types.is_dictionary(t):
        return v.as_py()
    if pa.types.is_timestamp(t):
        per_day = 86400 * PER_SECOND[t.unit]
        days, rest = divmod(v.value, per_day)
        return day(days) + "T" + clock(rest, t.unit) + ("Z" if t.tz else "")
    if pa.types.is_time(t):
        return clock(v.value, t.unit)
    if pa.types.is_date32(t):
        return day(v.value)
    if pa.types.is_duration(t):
        return v.value  # pyarrow keeps the unit in metadata of its own
    if pa.types.is_uint64(t) and v.as_py() >= 2**63:
        return str(v.as_py())
    if pa.types.is_decimal(t):
        return format(v.as_py(), "f")
    if pa.types.is_float16(t) or pa.types.is_float32(t):
        x = np.float32(v.as_py())
        return number(float(str(x)) if np.isfinite(x) else float(x))
    if pa.types.is_float64(t):
        return number(v.as_py())
    x = v.as_py()
    if isinstance(x, bytes):
        return x.decode()
    if isinstance(x, uuid.UUID):
        return str(x)
    return x


def rows(path, table=None):
    table = pq.read_table(path, use_threads=False) if table is None else table
    for batch in table.to_batches(max_chunksize=4096):
        for i in range(batch.num_rows):
            yield {f.name: spell(batch.column(k)[i], f.type) for k, f in enumerate(batch.schema)}


def compare(kedge, paths, table=None):
    for path in paths:
        out = subprocess.run([kedge, "data", "convert", path], check=True, stdout=subprocess.PIPE).stdout
        ours = [json.loads(line) for line in out.decode().splitlines()]
        theirs = list(rows(path, table))
        bad = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b or list(a) != list(b)]
        same = len(ours) == len(theirs) and not bad
        print(f"{path}: {len(ours)} rows, {'equal' if same else f'DIFFERENT: {len(theirs)} rows, first {bad[:3]}'}")
        if not same:
            for i in bad[:1]:
                print(" kedge  ", json.dumps(ours[i])[:2000], "\n pyarrow", json.dumps(theirs[i])[:2000])
            sys.exit(1)


LEAVES = {
    pa.int32(): lambda r: r.randint(-(2**31), 2**31 - 1),
    pa.int64(): lambda r: r.choice([r.randint(-(2**63), 2**63 - 1), r.randint(0, 9)]),
    pa.string(): lambda r: r.choice(["", "a", "bé" * r.randint(0, 9), str(r.random()), "same prefix %d" % r.randint(0, 99)]),
    pa.float64(): lambda r: r.choice([r.random(), 0.0, -1e-300]),
    pa.float32(): lambda r: float(np.float32(r.random())),
    pa.bool_(): lambda r: r.random() < 0.5,
}


def random_type(r, depth):
    kind = r.choice(["leaf", "leaf", "list", "struct", "map"]) if depth < 4 else "leaf"
    if kind == "leaf":
        return r.choice(list(LEAVES))
    if kind == "list":
        return pa.list_(pa.field("element", random_type(r, depth + 1), nullable=r.random() < 0.7))
    if kind == "map":
        return pa.map_(r.choice([pa.string(), pa.int64()]), random_type(r, depth + 1))
    return pa.struct([pa.field(f"f{i}", random_type(r, depth + 1), nullable=r.random() < 0.7)
                      for i in range(r.randint(1, 3))])


def random_value(r, t, nullable):
    if nullable and r.random() < 0.2:
        return None
    if pa.types.is_struct(t):
        return {f.name: random_value(r, f.type, f.nullable) for f in t}
    if pa.types.is_list(t):
        return [random_value(r, t.value_type, t.value_field.nullable) for _ in range(r.choice([0, 1, 2, 5, 12]))]
    if pa.types.is_map(t):
        keys = {random_value(r, t.key_type, False) for _ in range(r.choice([0, 1, 3]))}
        return [(k, random_value(r, t.item_type, True)) for k in keys]
    return LEAVES[t](r)


def compare_random(kedge, count, seed):
    path = "/tmp/kedge-random.parquet"
    for i in range(count):
        r = random.Random(seed + i)
        fields = [pa.field(f"c{k}", random_type(r, 0), nullable=r.random() < 0.7) for k in range(r.randint(1, 4))]
        n = r.choice([1, 7, 100, 1500])
        cols = [pa.array([random_value(r, f.type, f.nullable) for _ in range(n)], f.type) for f in fields]
        table = pa.table(cols, schema=pa.schema(fields))
        pq.write_table(table, path, compression=r.choice(["none", "snappy", "zstd", "gzip"]),
                       use_dictionary=r.random() < 0.5, data_page_version=r.choice(["1.0", "2.0"]),
                       data_page_size=r.choice([64, 1000, 1 << 20]), row_group_size=r.choice([3, 60, 10000]),
                       write_batch_size=r.choice([5, 1024]), write_page_checksum=r.random() < 0.5,
                       use_compliant_nested_type=r.random() < 0.5, dictionary_pagesize_limit=r.choice([50, 1 << 20]))
        print("seed", seed + i, end=" ")
        compare(kedge, [path], table)


def many_types(n):
    words = ["", "a", "pi is 3", "naïve ∑ 🙂", "x" * 70, "line\nbreak \"q\" \\"]
    rng = np.random.default_rng(1)
    maybe = lambda xs: [None if i % 5 == 3 else x for i, x in enumerate(xs)]
    ints = [int(x) for x in rng.integers(-(2**62), 2**62, n)]
    cols = {
        "b": pa.array(maybe([i % 3 == 0 for i in range(n)])),
        "i8": pa.array([i % 256 - 128 for i in range(n)], pa.int8()),
        "u8": pa.array([i % 256 for i in range(n)], pa.uint8()),
        "u32": pa.array([(i * 2654435761) % 2**32 for i in range(n)], pa.uint32()),
        "i32": pa.array(maybe([i * i - 7 for i in range(n)]), pa.int32()),
        "i64": pa.array(ints, pa.int64()),
        "u64": pa.array([x & (2**63 - 1) for x in ints], pa.uint64()),
        "f16": pa.array(np.array([i / 8 - 3 for i in range(n)], np.float16)),
        "f32": pa.array(maybe([float(np.float32(i / 7 - 3)) for i in range(n)]), pa.float32()),
        "f64": pa.array([[1e300, -0.1, 0.0, 5e-324, math.inf, math.nan, i / 3][i % 7] for i in range(n)]),
        "s": pa.array(maybe([words[i % len(words)] + str(i // 11) for i in range(n)])),
        "dec32": pa.array([decimal.Decimal(i - 5).scaleb(-2) for i in range(n)], pa.decimal128(7, 2)),
        "dec": pa.array(maybe([decimal.Decimal(x).scaleb(-10) for x in ints]), pa.decimal128(38, 10)),
        "date": pa.array([i * 37 - 9000 for i in range(n)], pa.int32()).cast(pa.date32()),
        "time": pa.array([(i * 987654321) % 86400000000 for i in range(n)], pa.int64()).cast(pa.time64("us")),
        "ts_ms": pa.array([i * 86399999 - 10**10 for i in range(n)], pa.int64()).cast(pa.timestamp("ms")),
        "ts_us": pa.array([i * 10**11 - 1 for i in range(n)], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "ts_ns": pa.array([i * 10**16 + 1 for i in range(n)], pa.int64()).cast(pa.timestamp("ns")),
        "none": pa.array([None] * n, pa.string()),
    }
    return pa.table(cols)


def nested(n):
    rows_ = []
    for i in range(n):
        rows_.append({
            "prompt": [{"role": "user", "content": f"What is {i} + {k}?"} for k in range(i % 4)] if i % 7 != 5 else None,
            "extra": None if i % 6 == 2 else {"index": i, "deep": {"tags": ["t"] * (i % 3), "opt": None if i % 2 else i}},
            "lists": None if i % 9 == 8 else [None if k == 1 else list(range(k)) for k in range(i % 5)],
            "pairs": [("k%d" % k, k * 1.5) for k in range(i % 3)],
            "numbers": [(k, "v") for k in range(i % 2)],
        })
    text = pa.string()
    schema = pa.schema([
        ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
        ("extra", pa.struct([("index", pa.int64()),
                             ("deep", pa.struct([("tags", pa.list_(text)), ("opt", pa.int32())]))])),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("pairs", pa.map_(text, pa.float64())),
        ("numbers", pa.map_(pa.int32(), text)),
    ])
    return pa.Table.from_pylist(rows_, schema)


def make_files(out):
    t, x = many_types(150), nested(120)
    pq.write_table(t, out / "types_v1_snappy.parquet", compression="snappy", data_page_size=900,
                   write_page_checksum=True, row_group_size=90)
    pq.write_table(t, out / "types_v2_zstd.parquet", compression="zstd", data_page_version="2.0",
                   data_page_size=700, use_dictionary=False)
    pq.write_table(t, out / "types_none.parquet", compression="none", use_dictionary=["s", "i32", "f32"])
    delta = {c: "DELTA_BINARY_PACKED" for c in ("i8", "i32", "i64", "u64", "u32", "date", "ts_ms")}
    delta |= {"s": "DELTA_BYTE_ARRAY", "f32": "BYTE_STREAM_SPLIT", "f64": "BYTE_STREAM_SPLIT", "b": "RLE",
              "f16": "BYTE_STREAM_SPLIT", "dec": "DELTA_BYTE_ARRAY", "dec32": "BYTE_STREAM_SPLIT"}
    pq.write_table(t, out / "types_delta_gzip.parquet", compression="gzip", data_page_version="2.0",
                   use_dictionary=False, column_encoding=delta, data_page_size=1200)
    pq.write_table(t.select(["s", "i64"]), out / "lengths.parquet", compression="none", use_dictionary=False,
                   column_encoding={"s": "DELTA_LENGTH_BYTE_ARRAY", "i64": "BYTE_STREAM_SPLIT"})
    pq.write_table(x, out / "nested_v1.parquet", compression="snappy", data_page_size=300)
    pq.write_table(x, out / "nested_v2.parquet", compression="gzip", data_page_version="2.0", data_page_size=300,
                   use_compliant_nested_type=False, row_group_size=50)
    pq.write_table(x.slice(0, 0), out / "no_rows.parquet")
    pq.write_table(t.select(["ts_us", "ts_ns"]).slice(0, 40), out / "int96.parquet", use_deprecated_int96_timestamps=True)
    make_old_lists(out / "oldlists.parquet")
    make_hadoop(out / "hadoop.parquet")
    make_codecs(out)
    make_duckdb(out)
    make_polars(out, x)


def varint(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


class Long(int):
    """An integer of 64 bits."""


def thrift(fields):
    """A struct in the compact protocol: {id: int, bytes, dict, or list of one of these}."""

    def body(v):
        if isinstance(v, int):
            return varint(v * 2 if v >= 0 else -v * 2 - 1)
        return varint(len(v)) + v if isinstance(v, bytes) else thrift(v)

    kind = lambda v: 6 if isinstance(v, Long) else 5 if isinstance(v, int) else 8 if isinstance(v, bytes) else 9 if isinstance(v, list) else 12
    text, last = b"", 0
    for i, v in fields.items():
        text += bytes([(i - last) << 4 | kind(v)])
        last = i
        text += bytes([len(v) << 4 | kind(v[0])]) + b"".join(map(body, v)) if isinstance(v, list) else body(v)
    return text + b"\0"


def make_old_lists(path):
    """Lists as the first writers had them: a repeated leaf in a LIST, a repeated leaf alone, a struct named array."""
    levels = lambda xs: bytes(b for x in xs for b in (2, x))  # runs of one
    sized = lambda b: len(b).to_bytes(4, "little") + b
    rep = [0, 1, 0, 0, 0]
    columns = {b"a.array": [2, 2, 0, 1, 2], b"b": [1, 1, 0, 0, 1], b"c.array.x": [2, 2, 1, 0, 2]}
    schema = [{4: b"schema", 5: 3},
              {3: 1, 4: b"a", 5: 1, 6: 3}, {1: 1, 3: 2, 4: b"array"},
              {1: 1, 3: 2, 4: b"b"},
              {3: 1, 4: b"c", 5: 1, 6: 3}, {3: 2, 4: b"array", 5: 1}, {1: 1, 3: 0, 4: b"x"}]
    text, chunks = b"PAR1", []
    for name, definition in columns.items():
        values = b"".join(i.to_bytes(4, "little") for i in range(1, definition.count(max(definition)) + 1))
        data = sized(levels(rep)) + sized(levels(definition)) + values
        page = thrift({1: 0, 2: len(data), 3: len(data), 5: {1: len(rep), 2: 0, 3: 3, 4: 3}}) + data
        meta = {1: 1, 2: [0, 3], 3: name.split(b"."), 4: 0, 5: Long(len(rep)),
                6: Long(len(page)), 7: Long(len(page)), 9: Long(len(text))}
        chunks.append({2: Long(len(text)), 3: meta})
        text += page
    footer = thrift({1: 1, 2: schema, 3: Long(4), 4: [{1: chunks, 2: Long(len(text)), 3: Long(4)}]})
    path.write_bytes(text + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def make_codecs(out):
    """The codecs beside snappy, gzip and zstd, on the types whose values are not those of JSON."""
    d = decimal.Decimal
    n = range(60)
    t = pa.table({
        "text": pa.array([None if i % 7 == 3 else "answer %d, " % i * (i % 5) for i in n]),
        "u64": pa.array([[0, 1, 2**63 - 1, 2**63, 2**64 - 1, None][i % 6] for i in n], pa.uint64()),
        "dec5": pa.array([d("-999.99"), d("0.05"), d("0.00"), None] * 15, pa.decimal128(5, 2)),
        "dec38": pa.array([[d("9" * 28 + "." + "9" * 10), d("-0.0000000001"), d(i), d("-12.5")][i % 4] for i in n], pa.decimal128(38, 10)),
        "dec76": pa.array([[d("9" * 56 + "." + "9" * 20), d("-" + "1" * 56), d("0.00000000000000000001"), None][i % 4] for i in n],
                          pa.decimal256(76, 20)),
        "dec0": pa.array([d(i * 10**30 * (-1)**i) for i in n], pa.decimal128(38, 0)),
        "dur_s": pa.array([i * 3600 for i in n], pa.duration("s")),
        "dur_ns": pa.array([-i * 10**12 for i in n], pa.duration("ns")),
        "map": pa.array([[("k%d" % k, k * i) for k in range(i % 4)] for i in n], pa.map_(pa.string(), pa.int64())),
        "imap": pa.array([[(k, None if k else "v") for k in range(i % 3)] for i in n], pa.map_(pa.int32(), pa.string())),
    })
    pq.write_table(t, out / "codecs_lz4.parquet", compression="lz4", data_page_size=200)
    pq.write_table(t, out / "codecs_lz4_v2.parquet", compression="lz4", data_page_version="2.0", use_dictionary=False)
    pq.write_table(t, out / "codecs_brotli.parquet", compression="brotli", data_page_size=200)
    pq.write_table(t, out / "codecs_brotli_v2.parquet", compression="brotli", data_page_version="2.0", use_dictionary=False)


def make_hadoop(path):
    """LZ4 under its old number: a frame of Hadoop, two of them, and a block without a frame, as arrow once wrote it."""
    pack = lambda b: pa.Codec("lz4_raw").compress(b).to_pybytes()
    frame = lambda b: len(b).to_bytes(4, "big") + len(pack(b)).to_bytes(4, "big") + pack(b)
    values = [b"question %d " % i * (i % 4) for i in range(40)]
    data = b"".join(len(v).to_bytes(4, "little") + v for v in values)
    packed = {b"one": frame(data), b"two": frame(data[:300]) + frame(data[300:]), b"raw": pack(data)}
    text, chunks = b"PAR1", []
    for name, bytes_ in packed.items():
        page = thrift({1: 0, 2: len(data), 3: len(bytes_), 5: {1: len(values), 2: 0, 3: 3, 4: 3}}) + bytes_
        chunks.append({2: Long(len(text)), 3: {1: 6, 2: [0, 3], 3: [name], 4: 5, 5: Long(len(values)), 6: Long(len(page)),
                                               7: Long(len(page)), 9: Long(len(text))}})
        text += page
    schema = [{4: b"schema", 5: 3}, *({1: 6, 3: 0, 4: name, 6: 0} for name in packed)]
    footer = thrift({1: 1, 2: schema, 3: Long(len(values)), 4: [{1: chunks, 2: Long(len(text)), 3: Long(len(values))}]})
    path.write_bytes(text + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def make_seeds(out):
    """Small files for the fuzzer, whose pages are not compressed, so that a changed byte reaches the decoders."""
    t, x = many_types(24), nested(12)
    columns = ["b", "i32", "i64", "f16", "f32", "s", "dec", "ts_us"]
    plain = dict(compression="none", write_statistics=False, store_schema=False)
    delta = {"i32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY", "b": "RLE",
             "f16": "BYTE_STREAM_SPLIT", "f32": "BYTE_STREAM_SPLIT", "dec": "DELTA_BYTE_ARRAY"}
    pq.write_table(t.select(columns), out / "delta.parquet", use_dictionary=False, column_encoding=delta, **plain)
    pq.write_table(t.select(columns), out / "dictionary.parquet", data_page_version="2.0", **plain)
    pq.write_table(t.select(["s", "i64"]), out / "delta_lengths.parquet", use_dictionary=False, **plain,
                   column_encoding={"s": "DELTA_LENGTH_BYTE_ARRAY", "i64": "BYTE_STREAM_SPLIT"})
    pq.write_table(x, out / "nested.parquet", data_page_size=64, **plain)


def make_refused(out):
    """Well-formed files whose second row cannot be a record."""
    out.mkdir(exist_ok=True)
    pairs = pa.map_(pa.string(), pa.int32())
    columns = {
        "equal_keys": pa.array([[("a", 1)], [("a", 1), ("b", 2), ("a", 3)]], pairs),
        "many_equal_keys": pa.array([[], [(str(i % 39), i) for i in range(40)]], pairs),
        "nul_key": pa.array([[("a", 1)], [("b\0c", 2)]], pairs),
        "not_utf8": pa.array([b"abc", b"ab\xc3"]),
        "large": pa.array([["a"], ["x" * 2**20] * 70]),
    }
    for name, column in columns.items():
        pq.write_table(pa.table({"x": column}), out / f"{name}.parquet", compression="zstd", store_schema=False,
                       write_statistics=False, dictionary_pagesize_limit=4 << 20)


def make_duckdb(out):
    import duckdb

    select = """select i::integer as id, 'q' || (i % 10) as question, case when i % 3 = 0 then null else i / 4.0 end as
        answer, [{'role': 'user', 'content': 'c' || i}] as prompt, {'ground_truth': i::varchar, 'style': 'rule'} as
        reward_model, (i::decimal(18, 3) / 8)::decimal(18, 3) as price, date '2024-02-28' + i::integer as d, uuid
        '6ba7b810-9dad-11d1-80b4-00c04fd430c8' as u, map {'a': i} as m, i % 2 = 0 as even from range(300) t(i)"""
    for codec, version in (("snappy", "v1"), ("zstd", "v2")):
        path = out / f"duckdb_{codec}.parquet"
        duckdb.sql(f"copy ({select}) to '{path}' (format parquet, codec '{codec}', parquet_version '{version}')")


def make_polars(out, table):
    import polars as pl

    frame = pl.from_arrow(table.drop_columns(["pairs", "numbers"]))
    frame.write_parquet(out / "polars_zstd.parquet", compression="zstd", row_group_size=50)
    frame.write_parquet(out / "polars_none.parquet", compression="uncompressed", data_page_size=512)


def main():
    if sys.argv[1] == "--compare":
        return compare(sys.argv[2], sys.argv[3:])
    if sys.argv[1] == "--seeds":
        return make_seeds(pathlib.Path(sys.argv[2]))
    if sys.argv[1] == "--random":
        return compare_random(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    out = pathlib.Path(sys.argv[1])
    for old in [*out.glob("*.parquet"), *out.glob("*.jsonl")]:
        old.unlink()
    make_files(out)
    make_refused(out / "refused")
    for name in ("train", "test"):
        copied = (pathlib.Path(sys.argv[2]) / f"{name}.parquet").read_bytes()
        (out / f"digits-{name}.parquet").write_bytes(copied)
    for path in sorted(out.glob("*.parquet")):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(path))
        golden = out / (path.stem.split("_")[0] + ".jsonl")
        assert not golden.exists() or golden.read_text() == text, path
        golden.write_text(text)


main()
