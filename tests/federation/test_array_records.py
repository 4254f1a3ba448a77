"""Arrays on the wire: the same bytes as Flower's own, whoever writes and reads them."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedenergy.federation.records import array_record, loaded, stacked

ARRAYS = {"matrix": np.arange(6.0).reshape(2, 3), "number": np.array(7, np.int64), "half": np.arange(3, dtype=np.float32),
          "bytes": np.frombuffer(b"abc", np.uint8), "empty": np.zeros((0, 4)), "true": np.array([True, False]),
          "swapped": np.arange(3, dtype=">f8")}


def test_they_are_flower_s_own_to_the_byte():
    ours, theirs = array_record(ARRAYS), ArrayRecord({name: Array(values) for name, values in ARRAYS.items()})
    assert ours == theirs
    assert list(ours) == list(theirs)


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_written_is_read(name):
    values, (array,) = ARRAYS[name], array_record({name: ARRAYS[name]}).values()
    found = loaded(array)
    np.testing.assert_array_equal(found, values)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert found.flags.writeable
    several = stacked([array, array])
    np.testing.assert_array_equal(several, np.stack([values, values]))


def test_other_layouts_are_read_as_numpy_reads_them():
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(loaded(Array(columns)), columns)
    np.testing.assert_array_equal(stacked([Array(columns), Array(columns.copy("C"))]), [columns, columns])
    np.testing.assert_array_equal(array_record({"x": columns[:, ::2]})["x"].numpy(), columns[:, ::2])


def test_a_claim_is_not_believed():
    """An array that says it is huge is refused, not allocated."""
    huge = Array("float64", (10**12,), "numpy.ndarray", Array(np.zeros(2)).data)
    np.testing.assert_array_equal(loaded(huge), np.zeros(2))         # as numpy() does: the file counts
    header = array_record({"x": np.zeros(0)})["x"].data.replace(b"(0,)", b"(9,)")
    with pytest.raises(ValueError, match="reshape"):
        loaded(Array("float64", (9,), "numpy.ndarray", header))


def test_shapes_that_differ_and_objects_are_refused():
    with pytest.raises(ValueError, match="shape"):
        stacked([Array(np.zeros(2)), Array(np.zeros(3))])
    with pytest.raises(ValueError, match="Object arrays"):
        array_record({"x": np.array([{}])})
