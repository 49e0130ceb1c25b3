"""Decoders give back what was encoded, and refuse everything else with a DataError."""

import contextlib
import gzip
import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from sordino.data import DataError, decoders, raw_files


def encode_idx(array: np.ndarray) -> bytes:
    codes = {"u1": 8, "i1": 9, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
    code = codes[array.dtype.str[1:]]
    big = array.astype(array.dtype.newbyteorder(">"))
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + big.tobytes()


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_idx_round_trip(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    decoded = raw_files.idx(encode_idx(array), "file")
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x08\x01", "not an IDX file"),
        (b"\0\0\x07\x01\0\0\0\x01x", "not an IDX file"),
        (b"\0\0\x08\x00\0\0\0\x01x", "not an IDX file"),
        (b"\0\0\x08\xff" + b"\0\0\0\x01" * 255, "not an IDX file"),
        (b"\0\0\x08\x03\0\0\0\x01", "truncated"),
        (b"\0\0\x08\x01\0\0\0\x00", "no examples"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "damaged: its header asks for 5 bytes and 3 follow"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "damaged: its header asks for 2 bytes and 3 follow"),
        (b"\0\0\x0e\x04" + b"\xff" * 16, "damaged"),
    ],
)
def test_idx_damage(data, said):
    with pytest.raises(DataError, match=said):
        raw_files.idx(data, "file")


def test_idx_pair_must_be_images_and_labels():
    images, labels = encode_idx(np.zeros((2, 3, 3), "u1")), encode_idx(np.zeros(2, "u1"))
    assert decoders.idx_images(images, labels, "file")[0].shape == (2, 3, 3)
    with pytest.raises(DataError, match="expected greyscale images"):
        decoders.idx_images(labels, images, "file")


@pytest.mark.parametrize("cut", [1, 5, 12, 20])
def test_truncated_gzip(cut):
    with pytest.raises(DataError, match=r"file\.gz is not a readable gzip file"):
        raw_files.gunzip(gzip.compress(b"some content")[:-cut], "file.gz")


def test_plain_bytes_pass_through_gunzip():
    assert raw_files.gunzip(b"plain", "file") == b"plain"


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_cifar_planes_become_channels(label_bytes):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (3, 32, 32, 3), np.uint8), np.array([4, 5, 6], np.uint8)
    rows = np.frombuffer(decoders.cifar_rows(x, y), np.uint8).reshape(3, -1)
    coarse = np.full((3, label_bytes - 1), 9, np.uint8)
    decoded, labels = decoders.cifar(np.concatenate([coarse, rows], axis=1).tobytes(), "file", label_bytes)
    np.testing.assert_array_equal(decoded, x)
    np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074])
def test_cifar_needs_whole_rows(size):
    with pytest.raises(DataError, match="not a CIFAR binary file"):
        decoders.cifar(bytes(size), "file", 1)


def test_luma_is_that_of_image_libraries():
    x = np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), np.uint8)
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in x]
    np.testing.assert_array_equal(decoders.luma(x), expected)


def test_svhn_is_grey_and_ten_means_zero():
    x = np.random.default_rng(2).integers(0, 256, (3, 32, 32, 3), np.uint8)
    file = io.BytesIO()
    savemat(file, {"X": np.moveaxis(x, 0, 3), "y": np.array([[10], [1], [9]], np.uint8)})
    images, labels = decoders.svhn(file.getvalue(), "file")
    np.testing.assert_array_equal(images, decoders.luma(x))
    assert labels.tolist() == [0, 1, 9]


def test_svhn_without_its_arrays():
    file = io.BytesIO()
    savemat(file, {"X": np.zeros((2, 2))})
    with pytest.raises(DataError, match="file"):
        decoders.svhn(file.getvalue(), "file")


def test_npz_never_unpickles():
    file = io.BytesIO()
    np.savez(file, x=np.array([{}], object))
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        decoders.npz(file.getvalue(), ("x",), "file")


def test_npz_names_what_is_lacking():
    file = io.BytesIO()
    np.savez(file, x=np.zeros(2))
    with pytest.raises(DataError, match="lacks the array 'y'"):
        decoders.npz(file.getvalue(), ("x", "y"), "file")


def test_csv_rows_name_the_line_of_a_wrong_width():
    assert decoders.csv_rows(b"a, b\n\nc,d\n", "file", 2) == [(1, ["a", "b"]), (3, ["c", "d"])]
    with pytest.raises(DataError, match="file, line 2: 3 fields where 2 are expected"):
        decoders.csv_rows(b"a,b\nc,d,e\n", "file", 2)
    with pytest.raises(DataError, match="no rows"):
        decoders.csv_rows(b"\n", "file", 2)
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 2\)"):
        decoders.csv_rows(b"a,\xff\n", "file", 2)


def test_labelled_bits():
    x, y = decoders.labelled_bits(b'"2",0,1\n"1",1,1\n', "file", bits=2)
    assert x.tolist() == [[0, 1], [1, 1]]
    assert y.tolist() == [2, 1]
    for wrong in (b"1,0\n", b"1,0,2\n", b"1,0,secret\n", b""):
        with pytest.raises(DataError) as raised:
            decoders.labelled_bits(wrong, "file", bits=2)
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None


DECODERS = {
    "gunzip": lambda data: raw_files.gunzip(data, "file"),
    "idx": lambda data: raw_files.idx(data, "file"),
    "idx pair": lambda data: decoders.idx_images(data, data, "file"),
    "cifar": lambda data: decoders.cifar(data, "file", 1),
    "svhn": lambda data: decoders.svhn(data, "file"),
    "npz": lambda data: decoders.npz(data, ("x", "y"), "file"),
    "csv": lambda data: decoders.csv_rows(data, "file", 3),
    "bits": lambda data: decoders.labelled_bits(data, "file", bits=2),
}


def _npz_bytes() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=np.arange(4), y=np.arange(2.0))
    return file.getvalue()


SEEDS = (
    b"",
    gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"),
    encode_idx(np.zeros((2, 2, 2), "u1")),
    _npz_bytes(),
    b'1,"a",b\n2,c,d\n',
    b"1,0,1\n2,1,0\n",
)


@st.composite
def damaged(draw):
    """A well-formed file with some bytes overwritten, cut off or appended; or any bytes at all."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=40))


@pytest.mark.parametrize("decoder", DECODERS)
@settings(deadline=None)
@given(data=damaged())
def test_nothing_but_data_errors_escapes(decoder, data):
    with contextlib.suppress(DataError):
        DECODERS[decoder](data)
