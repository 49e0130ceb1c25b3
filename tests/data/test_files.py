"""Users' own files: every kind that is promised is read, and everything else gets one clear line."""

import contextlib
import gzip
import io
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sordino.data import DataError, read_examples
from sordino.data.files import read_cells
from sordino.mechanisms import memory

NUMBERS = np.array([[1.0, 2.5], [3.0, -4.0]])


def _bytes(save, *arguments, **options) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **options)
    return file.getvalue()


def _picture(array, format="PNG") -> bytes:
    return _bytes(Image.fromarray(array).save, format)


def _write(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


GOOD = [
    ("a.npy", _bytes(np.save, NUMBERS)),
    ("a.NPY", _bytes(np.save, NUMBERS)),
    ("a.npz", _bytes(np.savez, NUMBERS)),
    ("a.npz", _bytes(np.savez, x=NUMBERS, y=np.zeros(2))),
    ("a.csv", "1,2.5\n3,-4\n"),
    ("a.csv", "\n1,2.5\n3,-4\n"),
    ("a.csv", "left,right\n1,2.5\n3,-4\n"),
    ("a.csv", "0,1\n1,2.5\n3,-4\n"),
    ("a.csv", "\ufeffleft, right\r\n1, 2.5\r\n3, -4\r\n"),
    ("a.csv.gz", gzip.compress(b"1,2.5\n3,-4\n")),
    ("a.parquet", _bytes(pd.DataFrame(NUMBERS, columns=["a", "b"]).to_parquet)),
]


# Explicit ids: archives hold the time of day, and workers must agree on names.
@pytest.mark.parametrize(("name", "data"), GOOD, ids=[f"{i}-{case[0]}" for i, case in enumerate(GOOD)])
def test_numbers(tmp_path, name, data):
    read = read_examples(_write(tmp_path, name, data))
    assert isinstance(read, np.ndarray)
    assert read.dtype == np.float64
    assert read.flags.writeable
    np.testing.assert_array_equal(read, NUMBERS)


@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "images.idx"])
def test_idx(tmp_path, name):
    data = b"\0\0\x08\x03" + b"\0\0\0\x02" * 3 + bytes(range(8))
    read = read_examples(_write(tmp_path, name, gzip.compress(data) if name.endswith("gz") else data))
    np.testing.assert_array_equal(read, np.arange(8, dtype=np.uint8).reshape(2, 2, 2))


def test_images_of_mnist(named, tmp_path):
    x = named("mnist").test.x[:3]
    for i, image in enumerate(x):
        _write(tmp_path, f"{i}.png", _picture(image))
    np.testing.assert_array_equal(read_examples(tmp_path), x)
    np.testing.assert_array_equal(read_examples(tmp_path / "1.png"), x[1:2])


def test_one_colour_image_makes_all_colour(tmp_path):
    _write(tmp_path, "a.png", _picture(np.full((4, 5), 7, np.uint8)))
    _write(tmp_path, "b.PNG", _picture(np.full((4, 5, 3), 9, np.uint8)))
    (tmp_path / "notes.txt").write_text("ignored")
    read = read_examples(tmp_path)
    assert read.shape == (2, 4, 5, 3)
    assert read.dtype == np.uint8
    assert read[0].min() == read[0].max() == 7


def test_jpeg(tmp_path):
    assert read_examples(_write(tmp_path, "a.jpg", _picture(np.zeros((8, 8, 3), np.uint8), "JPEG"))).shape == (
        1,
        8,
        8,
        3,
    )


def test_words_make_a_frame(tmp_path):
    read = read_examples(_write(tmp_path, "a.csv", "age,smoker\n19,yes\n20,no\n"))
    assert isinstance(read, pd.DataFrame)
    assert read["smoker"].tolist() == ["yes", "no"]
    path = tmp_path / "b.parquet"
    read.astype({"smoker": "category"}).to_parquet(path)
    assert read_examples(path)["age"].tolist() == [19, 20]


def test_nullable_integers_and_booleans_are_numbers(tmp_path):
    frame = pd.DataFrame({"a": pd.array([1, 2], "Int64"), "b": [True, False]})
    frame.to_parquet(tmp_path / "a.parquet")
    np.testing.assert_array_equal(read_examples(tmp_path / "a.parquet"), [[1, 1], [2, 0]])
    frame.loc[1, "a"] = pd.NA
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2, column 'a'"):
        read_examples(tmp_path / "a.parquet")


SECRET = "s3cret"


BAD = [
    ("a.npy", _bytes(np.save, np.array([[0, 1], [np.nan, 2]])), "row 2, column 1: missing or infinite"),
    ("a.npy", _bytes(np.save, np.array([0, np.inf])), "row 2: missing or infinite"),
    ("a.npy", _bytes(np.save, np.array([SECRET])), "must be numbers, not <U6"),
    ("a.npy", _bytes(np.save, np.array([{}], object), allow_pickle=True), "not a readable .npy"),
    ("a.npy", _bytes(np.save, np.zeros((0, 4))), "no examples"),
    ("a.npy", _bytes(np.save, np.array(3.0)), "no examples"),
    ("a.npy", _bytes(np.save, NUMBERS)[:-3], "not a readable .npy"),
    ("a.npy", _bytes(np.savez, NUMBERS), "rename it to .npz"),
    ("a.npz", _bytes(np.save, NUMBERS), "rename it to .npy"),
    ("a.npz", _bytes(np.savez, a=NUMBERS, b=NUMBERS), "none is named x"),
    ("a.npz", _bytes(np.savez, NUMBERS)[:-30], "not a readable .npz"),
    ("a.csv", "age,name\n1,a\n,b\n", "row 2, column 'age': missing"),
    ("a.csv", "age,name\n1,a\n2,\n", "row 2, column 'name': missing"),
    ("a.csv", "1,2\n3,inf\n", "row 2, column 2: missing or infinite"),
    ("a.csv", f"a,b\n1,2\n3,{SECRET},5\n", "the rows have more fields|line 3: the number of fields differs"),
    ("a.csv", f"a,b\n1,2,{SECRET}\n", "more fields than the first line|line 2: the number of fields"),
    ("a.csv", "a,b\n", "no rows"),
    ("a.csv", "\n\n", "is empty|no rows"),
    ("a.csv", "", "is empty"),
    ("a.csv", b"a,b\n\xff,1\n", "not UTF-8 text"),
    ("a.csv", b"a,b\n\0,1\n", "not a readable CSV"),
    ("a.csv", f'a,b\n1,"{SECRET}\n', "a.csv"),
    ("a.csv.gz", gzip.compress(b"1,2\n")[:-4], "not a readable gzip"),
    ("a.parquet", b"PAR1nothingPAR1", "not a readable Parquet"),
    ("a.png", b"\x89PNG\r\n", "not a readable image"),
    ("a.png", _picture(np.zeros((40, 40), np.uint8))[:-20], "not a readable image"),
    ("a.png", _picture(np.zeros((4, 4), np.uint16)), "more than 8 bits"),
    ("a.txt", SECRET, "is of no kind that can be read; use .npy"),
    ("a", b"\0\0\x08\x01\0\0\0\x09abc", "damaged"),
]


@pytest.mark.parametrize(("name", "data", "said"), BAD, ids=[f"{i}-{case[0]}" for i, case in enumerate(BAD)])
def test_bad_files_get_one_line(tmp_path, name, data, said):
    with pytest.raises(DataError, match=said) as raised:
        read_examples(_write(tmp_path, name, data))
    message = str(raised.value)
    assert "\n" not in message
    assert SECRET not in message
    assert raised.value.__cause__ is None


def test_a_timestamp_column_is_refused(tmp_path):
    pd.DataFrame({"when": pd.to_datetime(["2020-01-01"])}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column 'when': neither numbers nor words"):
        read_examples(tmp_path / "a.parquet")


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_examples(tmp_path / "absent.npy")
    with pytest.raises(DataError, match=r"holds no \.png"):
        read_examples(tmp_path)
    with pytest.raises(DataError):
        read_examples("a\0b.npy")


def test_images_of_two_sizes(tmp_path):
    _write(tmp_path, "a.png", _picture(np.zeros((4, 5), np.uint8)))
    _write(tmp_path, "b.png", _picture(np.zeros((4, 6), np.uint8)))
    with pytest.raises(DataError, match=r"b\.png is 6×4 pixels and a\.png 5×4; bring all images to one size"):
        read_examples(tmp_path)


SAMPLES = {
    "a.npy": _bytes(np.save, NUMBERS),
    "a.npz": _bytes(np.savez_compressed, NUMBERS),
    "a.csv": b"age,name\n1,a\n2,b\n",
    "a.parquet": b"PAR1",
    "a.png": _picture(np.arange(16, dtype=np.uint8).reshape(4, 4)),
    "a.jpg": _picture(np.arange(16, dtype=np.uint8).reshape(4, 4), "JPEG"),
    "a.gz": gzip.compress(b"\0\0\x08\x01\0\0\0\x02ab"),
    "a": b"\0\0\x08\x01\0\0\0\x02ab",
}


@pytest.mark.parametrize("name", SAMPLES)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draws=st.data())
def test_nothing_but_data_errors_escapes(tmp_path, name, draws):
    data = bytearray(SAMPLES[name])
    for _ in range(draws.draw(st.integers(0, 3))):
        data[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    end = draws.draw(st.integers(0, len(data)))
    path = _write(tmp_path, name, bytes(data[:end]) + draws.draw(st.binary(max_size=30)))
    with contextlib.suppress(DataError):
        read_examples(path)


def _parquet(values, **options) -> bytes:
    return _bytes(lambda file: pd.DataFrame({"a": values}).to_parquet(file, **options))


def _strings() -> bytes:
    """Ten thousand times the same kilobyte, which a dictionary holds once."""
    return _parquet(["x" * 1000] * 10_000)


BOMBS = [
    ("a.csv.gz", gzip.compress(b"1,2\n" * 2**24, 1)),
    ("a.idx.gz", gzip.compress(b"\0\0\x08\x01" + bytes(2**26), 1)),
    ("a.npz", _bytes(np.savez_compressed, x=np.zeros(2**23))),
    ("a.parquet", _parquet(np.zeros(2**23))),
    ("a.parquet", _strings()),
    ("a.csv", b"1,2\n" * 2**19),
]


@pytest.mark.parametrize(("name", "data"), BOMBS)
def test_what_unpacks_to_more_than_there_is_memory_for(tmp_path, monkeypatch, name, data):
    monkeypatch.setattr(memory, "available", lambda: 4 * 2**20)
    tracemalloc.start()
    with pytest.raises(DataError) as refused:
        read_examples(_write(tmp_path, name, data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(str(refused.value).splitlines()) == 1
    assert "unpacks to more than 0.000977 GiB, a quarter of the free memory" in str(refused.value)
    assert peak < 2**24


def test_what_fits_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 128 * 2**20)
    assert len(read_examples(_write(tmp_path, "a.parquet", _strings()))) == 10_000
    monkeypatch.setattr(memory, "available", lambda: 1e12)
    path = _write(tmp_path, "a.csv.gz", gzip.compress(b"1,2\n") + gzip.compress(b"3,4\n"))
    assert read_examples(path).tolist() == [[1, 2], [3, 4]]  # a gzip file may have several members


@pytest.mark.parametrize(("name", "line"), [("a.csv.gz", b"1,2\n"), ("a.csv", b"x,y\n"), ("a.csv", b"c,")])
@pytest.mark.parametrize("read", [read_examples, read_cells])
def test_a_csv_file_whose_cells_take_more_memory_than_there_is(tmp_path, monkeypatch, name, line, read):
    content = line * 2**16
    path = _write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)
    monkeypatch.setattr(memory, "available", lambda: 5 * len(content))
    with pytest.raises(DataError, match=r"a\.csv.* has about [\d,]+ lines of [\d,]+ fields, which take about [^\n]*$"):
        read(path)


@pytest.mark.parametrize("problem", [MemoryError(), pd.errors.ParserError("C error: out of memory")])
def test_a_csv_file_that_exhausts_memory_is_not_called_damaged_alone(tmp_path, monkeypatch, problem):
    path = _write(tmp_path, "a.csv", b"a,b\n1,2\n")

    def exhausted(*_, **__):
        raise problem

    monkeypatch.setattr(pd, "read_csv", exhausted)
    with pytest.raises(DataError, match="takes more memory than there is: it is damaged, or too large"):
        read_examples(path)


@pytest.mark.parametrize(("side", "megapixels"), [(9000, 81), (12_000, 144), (15_000, 225)])
def test_an_image_of_too_many_pixels(tmp_path, side, megapixels):
    path = _write(tmp_path, "a.png", _bytes(Image.new("1", (side, side)).save, "PNG"))
    most = Image.MAX_IMAGE_PIXELS
    with pytest.raises(DataError, match=rf"a\.png has {megapixels} megapixels; scale it down to at most 50"):
        read_examples(path)
    assert most == Image.MAX_IMAGE_PIXELS


def test_images_of_too_many_pixels_together(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        _write(folder, f"{name}.png", _picture(np.zeros((300, 300), np.uint8)))
    assert read_examples(folder).shape == (3, 300, 300)
    monkeypatch.setattr(memory, "available", lambda: 4 * 2**20)
    with pytest.raises(DataError, match="folder unpacks to more than"):
        read_examples(folder)
