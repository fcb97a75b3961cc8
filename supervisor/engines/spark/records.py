"""Rows of a DataFrame or an RDD as TFRecord files of Examples, in a store.

Each partition becomes one file `part-00000.tfrecord` of its directory. A value of a row becomes a feature:
whole numbers and booleans int64, other numbers float, texts (as UTF-8) and bytes bytes, a list of such values
a longer feature, None none. A row of bytes is a record as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import math
import numbers
import secrets
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import google_crc32c

from recovery.formats.sstable import mask
from recovery.stores.open import Stores
from supervisor.contract.errors import Conflict, UserError
from supervisor.wire.tensorflow_example_pb2 import Example, Feature

_MOST_FLOAT = 3.4028234663852886e38
"""The largest number of 32 bits."""


def write_partition(uri: str, directory: str, index: int, rows: Iterable[object]) -> Iterator[int]:
    """Write the rows of one partition into a directory of the store at `uri`; yields how many there were.

    A store's file is there whole or not at all. So one that is there was written by another attempt of this
    task. Raises UserError for a row that is no record, and what stores raise.
    """
    with tempfile.NamedTemporaryFile(prefix="tfsup-records-") as file:
        many = 0
        for row in rows:
            _write_record(file, record_of(row))
            many += 1
        file.flush()
        if many:
            asyncio.run(_upload(uri, file.name, f"{directory}/{file_of(index)}"))
    yield many


async def put_in_place(uri: str, fresh: str, name: str, counts: Sequence[int]) -> None:
    """Give a directory of the store its name, in place of the one that had it.

    `counts`: the records of each partition. Raises Conflict if it does not hold the files of these alone:
    another run has removed some of them, as what it took for left.
    """
    stores = Stores()
    try:
        store = stores.open(uri)
        wanted = {f"{fresh}/{file_of(index)}" for index, many in enumerate(counts) if many}
        if {each.path for each in (await store.list(fresh)).files} != wanted:
            raise Conflict(f"another run writes {uri}/{name} at the same time; run this one again after it")
        if any(each == name for each in (await store.list("")).directories):
            await store.delete_tree(name)
        await store.rename(fresh, name)
    finally:
        await stores.close()


async def make_room(uri: str, name: str) -> str:
    """Make the root of the store, and remove what earlier runs left of a directory; returns a name for it.

    No run has the name of another, as tasks of one that was interrupted may still write.
    """
    stores = Stores()
    try:
        store = stores.open(uri)
        await store.prepare()
        for each in (await store.list("")).directories:
            if each.startswith(f"{name}.new"):
                await store.delete_tree(each)
    finally:
        await stores.close()
    return f"{name}.new-{secrets.token_hex(4)}"


def file_of(index: int) -> str:
    """The name of the file of a partition."""
    return f"part-{index:05}.tfrecord"


def record_of(row: object) -> bytes:
    """The record of a row. Raises UserError."""
    if isinstance(row, bytes | bytearray):
        return bytes(row)
    as_dict = getattr(row, "asDict", None)
    fields = as_dict() if as_dict is not None else row
    if not isinstance(fields, Mapping):
        raise UserError(
            f"a row is a {type(row).__name__}: give a DataFrame, or an RDD of dictionaries, or of records as "
            "bytes"
        )
    example = Example()
    for name, value in fields.items():
        example.features.feature[str(name)].CopyFrom(_feature(str(name), value))
    return bytes(example.SerializeToString())


def _write_record(file: IO[bytes], record: bytes) -> None:
    """Write a record as TFRecordWriter does."""
    length = struct.pack("<Q", len(record))
    file.write(length + _checksum(length) + record + _checksum(record))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", mask(google_crc32c.value(data)))


def _feature(name: str, value: object) -> Feature:
    try:
        values = [_plain(each) for each in _listed(value)]
    except UnicodeEncodeError as error:
        raise UserError(f"column {name}: {error}") from error
    feature = Feature()
    if not values:
        return feature
    if all(isinstance(each, bytes) for each in values):
        feature.bytes_list.value.extend(each for each in values if isinstance(each, bytes))
    elif all(isinstance(each, int) for each in values):
        try:
            feature.int64_list.value.extend(each for each in values if isinstance(each, int))
        except ValueError as error:
            raise UserError(f"column {name}: {error}") from error
    elif all(isinstance(each, int | float) for each in values):
        if large := [each for each in values if isinstance(each, int | float) and _overflows(each)]:
            raise UserError(
                f"column {name}: {large[0]} is too large for a feature, whose floats have 32 bits"
            )
        feature.float_list.value.extend(each for each in values if isinstance(each, int | float))
    else:
        kinds = ", ".join(sorted({type(each).__name__ for each in values}))
        raise UserError(
            f"column {name} has values of {kinds}: a feature is a number, a text, bytes, or a list of one of "
            "these; select or convert such columns before"
        )
    return feature


def _listed(value: object) -> list[object]:
    """A value as a list. Arrays of numpy and vectors of Spark become lists of numbers."""
    if value is None:
        return []
    to_array = getattr(value, "toArray", None)
    if to_array is not None:
        value = to_array()
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        value = to_list()
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(value: object) -> object:
    """A value as bytes, int or float; others as they are."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real | decimal.Decimal) else value


def _overflows(value: float) -> bool:
    """Whether a number would become infinite."""
    return _MOST_FLOAT < abs(value) < math.inf


async def _upload(uri: str, source: str, path: str) -> None:
    stores = Stores()
    try:
        with contextlib.suppress(Conflict):
            await stores.open(uri).upload(source, path)
    finally:
        await stores.close()
