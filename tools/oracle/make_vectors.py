#!/usr/bin/env python3
"""Vectors as other programs write them, for the tests of guests/retriever/vectors.h and of `kedge search index --vectors-from`.

    tools/oracle/make_vectors.py     # numpy, faiss-cpu

The vectors are those of tests/data/encoder/bert/golden.jsonl, which numpy computed (make_encoder.py).
"""
import json
import os

import faiss
import numpy

OUT = "tests/data/vectors/"
x = numpy.array([json.loads(line)["vector"] for line in open("tests/data/encoder/bert/golden.jsonl")], numpy.float32)


def index(name, made):
    made.add(x)
    faiss.write_index(made, OUT + name)


def npy(name, matrix, version=None):
    with open(OUT + name, "wb") as f:
        numpy.lib.format.write_array(f, matrix, version)


os.makedirs(OUT, exist_ok=True)
dim = x.shape[1]
index("flat.index", faiss.index_factory(dim, "Flat", faiss.METRIC_INNER_PRODUCT))
index("distances.index", faiss.IndexFlatL2(dim))
index("city_block.index", faiss.IndexFlat(dim, faiss.METRIC_L1))
index("graph.index", faiss.IndexHNSWFlat(dim, 2))
npy("fp32.npy", x)
npy("fp16.npy", x.astype(numpy.float16))
npy("version_2.npy", x, (2, 0))
npy("fp64.npy", x.astype(numpy.float64))
npy("big_endian.npy", x.astype(">f4"))
npy("columns.npy", numpy.asfortranarray(x))
npy("one_row.npy", x[0])
npy("structure.npy", numpy.zeros(3, [("a", "<f4"), ("b", "<i4")]))
