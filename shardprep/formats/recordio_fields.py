"""What each column becomes in a recordio-protobuf Record.

Schema: package aialgs.data, proto2 (SageMaker guide, cdf-training).

    Record        features = 1 and label = 2: map<string, Value>; uid = 3: string
    Value         one of float64_tensor = 3, int32_tensor = 7, bytes = 9
    tensors       values = 1, packed double or int32
    Bytes         value = 1, repeated bytes

    input_ids        features["values"], int32_tensor, dense: no keys and no shape, as for the built-in algorithms
    id               uid
    label            label["values"]; all other columns features[name]
    int64            bytes, 8 of them, the lowest first (there is no int64); of a label int32_tensor, if it fits
    int32, bool      int32_tensor (false and true are 0 and 1)
    float64          float64_tensor
    string           bytes, UTF-8
    list of these    the same with so many values
    null             no entry
    list with nulls  bytes, one value an element; a null is the one byte FF, which is no UTF-8 and no number

Entries of a map stand in the order of their keys as UTF-8, as in protobuf's deterministic serialization.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardprep.core.block import IDS
from shardprep.errors import ConfigError
from shardprep.formats.recordio_varints import packed
from shardprep.formats.shard import ID, LENGTH

VALUES = "values"  # the key that built-in algorithms look for, in both maps
LABEL = "label"
FEATURES_TAG, LABEL_TAG, UID_TAG = b"\x0a", b"\x12", b"\x1a"
FLOAT64_TAG, INT32_TAG, BYTES_TAG = b"\x1a", b"\x3a", b"\x4a"
FIRST_TAG, SECOND_TAG = b"\x0a", b"\x12"  # field 1 and 2 of any message, with a length
NULL = 0xFF


@dataclass(frozen=True)
class Entry:
    """One entry of a record's maps.

    tag     of the map; head: the entry's key, and the tag of its value
    column  whose value it is; kind: "int64" ..., of the elements where it is a list
    """

    tag: bytes
    head: bytes
    column: str
    kind: str
    is_list: bool
    is_label: bool
    is_nullable: bool

    @property
    def tensor(self) -> bytes:
        """Return the tag of the tensor that the kind has; Bytes for those without."""
        if self.kind == "float64":
            return FLOAT64_TAG
        return INT32_TAG if self.kind in ("int32", "bool") or (self.is_label and self.kind == "int64") else BYTES_TAG


def entries_of(schema: pa.Schema) -> list[Entry]:
    """Return the entries of a record in their order. Raises ConfigError where a column takes the name of the tokens."""
    features: list[tuple[bytes, Entry]] = []
    labels: list[tuple[bytes, Entry]] = []
    for field in schema:
        if field.name in (ID, LENGTH):
            continue
        if field.name == VALUES:
            raise ConfigError(
                f"--column {VALUES}: RecordIO shards keep the token ids under that name; rename the field"
            )
        is_label = field.name == LABEL
        key = (VALUES if is_label or field.name == IDS else field.name).encode()
        is_list = bool(pa.types.is_list(field.type))
        kind = str(field.type.value_type if is_list else field.type).replace("double", "float64")
        head = FIRST_TAG + _varint(len(key)) + key + SECOND_TAG
        entry = Entry(
            LABEL_TAG if is_label else FEATURES_TAG, head, field.name, kind, is_list, is_label, field.nullable
        )
        (labels if is_label else features).append((key, entry))
    return [entry for _, entry in sorted(features, key=lambda pair: pair[0]) + labels]


def _varint(number: int) -> bytes:
    return packed(np.array([number], dtype=np.int64))[0].tobytes()
