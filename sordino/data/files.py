"""Users' own files → examples. The kind follows from the name; whatever does not fit is refused in one line."""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.raw_files import (
    GZIP,
    DataError,
    check_text,
    check_unpacked,
    idx,
    is_idx,
    most_bytes,
    npz_size,
    read_bytes,
    reading,
)
from sordino.mechanisms import memory

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image
    from pyarrow import DataType
    from pyarrow.parquet import ParquetFile

PICTURES = (".png", ".jpg", ".jpeg")
KINDS = ".npy, .npz, IDX (plain or .gz), .csv, .parquet, .png, .jpg, or a folder of images"


def read_examples(path: str | Path) -> NDArray[Any] | pd.DataFrame:
    """The examples of a file or folder, one a row.

    Arrays come back as they are, numeric tables as a float64 array, tables with words as a DataFrame, images as uint8
    (n, height, width) if all are grey and (n, height, width, 3) otherwise. Missing and infinite numbers are refused by
    row and column, both counted from 1; values are never quoted.
    """
    path = Path(path)
    if path.is_dir():
        return _pictures(path)
    data, suffix = _content(path), _suffix(path)
    if suffix == ".npy":
        return _checked(_npy(data, path), path)
    if suffix == ".npz":
        return _checked(_npz(data, path), path)
    if suffix == ".csv":
        [frame] = _csv_blocks(data, path, True, None)
        return _table(frame, path)
    if suffix == ".parquet":
        return _table(_parquet(data, path), path)
    if suffix in PICTURES:
        picture = _picture(data, path)
        return _pixels([picture], _is_grey(picture))
    if is_idx(data):
        return _checked(idx(data, path), path)
    raise DataError(f"{path} is of no kind that can be read; use {KINDS}")


def read_cells(path: str | Path) -> pd.DataFrame:
    """The named columns of a .csv or .parquet file with every cell as it stands there: text in a CSV file.

    To be read under a schema: nothing is guessed from the cells, so 007 stays a word and NA may be a category. A
    missing cell changes no other: whole numbers beside it stay whole.
    """
    import pandas as pd

    _, blocks = cell_blocks(path)
    return pd.concat(list(blocks), ignore_index=True)


def cell_blocks(table: pd.DataFrame | str | Path) -> tuple[int, Iterator[pd.DataFrame]]:
    """The same in blocks of rows, since words take many times the memory of numbers; and an upper bound on the rows."""
    if not isinstance(table, str | Path):
        frames = (table.iloc[start : start + _ROWS] for start in range(0, len(table), _ROWS))
        return len(table), _checked_blocks(frames, "the table")
    path = Path(table)
    suffix = _suffix(path)
    if suffix == ".parquet":
        most, blocks = _parquet_blocks(path)
    elif suffix == ".csv":
        data = _content(path)
        most, blocks = 1 + data.count(b"\n") + data.count(b"\r"), _csv_blocks(data, path, False, _ROWS)
    else:
        _content(path)
        raise DataError(f"{path} is not a table; use .csv or .parquet")
    return most, _checked_blocks(blocks, path)


def _checked_blocks(blocks: Iterator[pd.DataFrame], where: object) -> Iterator[pd.DataFrame]:
    rows = 0
    for frame in blocks:
        if not all(isinstance(name, str) for name in frame.columns):
            raise DataError(f"{where} does not name its columns; give each a name (in a file, in its first line)")
        if not frame.columns.is_unique:
            raise DataError(f"{where}: two columns have the same name; rename one")
        rows += len(frame)
        yield frame.reset_index(drop=True)
    if not rows:
        raise DataError(f"{where} holds no rows (n=0)")


_ROWS = 2**16


def _suffix(path: Path) -> str:
    """The ending of a file's name that gives its kind."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _content(path: Path) -> bytes:
    """A file's bytes, gunzipped if necessary."""
    data = read_bytes(path)
    if not data:
        raise DataError(f"{path} is empty (n=0)")
    return data


def _npy(data: bytes, path: Path) -> NDArray[Any]:
    with reading(path, ".npy"):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path} is named .npy but is an archive of arrays; rename it to .npz")
        return array


def _npz(data: bytes, path: Path) -> NDArray[Any]:
    """The array `x`, or the only one."""
    with reading(path, ".npz"):
        content = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{path} is named .npz but holds a single array; rename it to .npy")
        with content:
            check_unpacked(npz_size(content), path)
            if "x" in content.files:
                return np.asarray(content["x"])
            if len(content.files) != 1:
                raise DataError(f"{path} holds {len(content.files)} arrays and none is named x; name the examples x")
            return np.asarray(content[content.files[0]])


def _checked(array: NDArray[Any], path: Path) -> NDArray[Any]:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{path}: examples must be numbers, not {array.dtype}; convert them first")
    if array.ndim == 0 or array.size == 0:
        raise DataError(f"{path} holds no examples (n=0)")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        first = np.argwhere(~np.isfinite(array))[0] + 1
        place = f"row {first[0]}" + (f", column {', '.join(map(str, first[1:]))}" if array.ndim > 1 else "")
        raise DataError(f"{path}, {place}: missing or infinite number; fill or drop it")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _csv_blocks(data: bytes, path: Path, typed: bool, rows: int | None) -> Iterator[pd.DataFrame]:
    """Blocks of `rows` rows, or all at once. Typed: cells as numbers where a column has nothing else; else as text."""
    import pandas as pd

    check_text(data, path)
    if b"\0" in data:
        raise DataError(f"{path} is not a readable CSV file: it is truncated, damaged or of another format")
    stream = io.BytesIO(data)
    stream.seek(3 if data.startswith(codecs.BOM_UTF8) else 0)
    start = stream.tell()
    while (line := stream.readline()) and not line.strip(b"\r\n"):
        start = stream.tell()
    first = line.decode().lstrip("\r").partition("\r")[0].rstrip()
    stream.seek(start)
    lines, columns = 1 + max(data.count(b"\n"), data.count(b"\r")), 1 + first.count(",")
    cells = columns * (lines if rows is None else min(lines, rows))
    needed = 2 * len(data) + _CELL * cells + _COLUMN * columns
    if needed > memory.available():
        raise DataError(
            f"{path} has about {lines:,} lines of {columns:,} fields, which take about {needed / 2**30:,.3g} GiB of "
            f"memory, more than is free: it is damaged, or too large for this machine"
        )
    header = None if _is_data(first.split(",")) else 0
    with reading(path, "CSV"):
        names = [name.strip() for name in next(csv.reader([first], skipinitialspace=True), []) if name.strip()]
    if header == 0 and len(set(names)) < len(names):  # pandas would silently rename the second
        raise DataError(f"{path}: two columns have the same name; rename one")
    with _parsing(path):
        found = pd.read_csv(
            stream,
            header=header,
            index_col=False,
            skipinitialspace=True,
            dtype=None if typed else str,
            keep_default_na=typed,
            chunksize=rows,
        )
        blocks = iter([found]) if isinstance(found, pd.DataFrame) else iter(found)
    while True:
        with _parsing(path):
            block = next(blocks, None)
        if block is None:
            return
        yield block


# Bytes that a cell and a column take while a CSV file is parsed and copied into an array: more than measured.
_CELL, _COLUMN = 24, 2000


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Rows longer than the header would otherwise be cut with no more than a warning.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except pd.errors.EmptyDataError:
        raise DataError(f"{path} is empty (n=0)") from None
    except MemoryError:
        raise _too_large(path) from None
    except pd.errors.ParserError as error:
        if "out of memory" in str(error):
            raise _too_large(path) from None
        line = re.search(r"in line (\d+), saw", str(error))
        place = f", line {line[1]}" if line else ""
        raise DataError(f"{path}{place}: the number of fields differs from the first line's; correct the row") from None
    except pd.errors.ParserWarning:
        raise DataError(f"{path}: the rows have more fields than the first line; correct the first line") from None
    except Exception:  # the parser quotes cells in its messages
        raise DataError(f"{path} is not a readable CSV file: it is truncated, damaged or of another format") from None


def _too_large(path: Path) -> DataError:
    return DataError(f"{path} takes more memory than there is: it is damaged, or too large for this machine")


def _is_data(cells: list[str]) -> bool:
    """Whether a first line is data already: numbers, but not 0, 1, 2, … as programs name unnamed columns."""
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return len(cells) == 1 or cells != [str(i) for i in range(len(cells))]


def _parquet(data: bytes, path: Path) -> pd.DataFrame:
    import pandas as pd
    from pyarrow.parquet import ParquetFile

    with reading(path, "Parquet"):
        with ParquetFile(io.BytesIO(data)) as file:
            _check_parquet(file, path)
        return pd.read_parquet(io.BytesIO(data))


def _parquet_blocks(path: Path) -> tuple[int, Iterator[pd.DataFrame]]:
    """From the disk, unless it is gzipped: the file itself is not held in memory."""
    with reading(path, "data"), path.open("rb") as stream:
        start = stream.read(2)
    if not start:
        raise DataError(f"{path} is empty (n=0)")
    source = io.BytesIO(read_bytes(path)) if start == GZIP else path
    with reading(path, "Parquet"):
        from pyarrow.parquet import ParquetFile

        file = ParquetFile(source, buffer_size=2**20, pre_buffer=False)
        _check_parquet(file, path)
        rows = file.metadata.num_rows

    def blocks() -> Iterator[pd.DataFrame]:
        with file:
            batches = file.iter_batches(batch_size=_ROWS)
            while True:
                with reading(path, "Parquet"):
                    batch = next(batches, None)
                    frame = None if batch is None else batch.to_pandas(types_mapper=_whole_numbers)
                if frame is None:
                    return
                yield frame

    return rows, blocks()


def _whole_numbers(kind: DataType) -> Any:
    """A nullable type for whole numbers: pandas would turn a column with a gap into floats."""
    import pandas as pd
    from pyarrow.types import is_integer

    if not is_integer(kind):
        return None
    unsigned, bits = str(kind).split("int")
    return pd.api.types.pandas_dtype(f"{unsigned.upper()}Int{bits}")


def _check_parquet(file: ParquetFile, path: Path) -> None:
    """Refuse a file whose values would not fit once unpacked: repeated ones take next to no room in the file."""
    most, facts = most_bytes(), file.metadata
    groups = [facts.row_group(place) for place in range(facts.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    check_unpacked(sum(8 * chunk.num_values + chunk.total_uncompressed_size for chunk in chunks), path, most)
    # No value is longer than its whole chunk. Where that bound is too large, the values are counted.
    longest = [chunk.total_uncompressed_size for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
    counts = [chunk.num_values for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
    if sum(length * count for length, count in zip(longest, counts, strict=True)) <= most:
        return
    rows, total = max(1, min(2**16, most // (len(longest) * max(longest)))), 0
    for batch in file.iter_batches(batch_size=rows):
        total += batch.nbytes
        check_unpacked(total, path, most)


def _table(frame: pd.DataFrame, path: Path) -> NDArray[Any] | pd.DataFrame:
    import pandas as pd

    if frame.empty:
        raise DataError(f"{path} holds no rows (n=0)")
    if not frame.columns.is_unique:
        raise DataError(f"{path}: two columns have the same name; rename one")
    numeric = True
    for position, (name, column) in enumerate(frame.items(), start=1):
        label = position if isinstance(name, int) else repr(str(name))
        words = pd.api.types.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)
        real = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)
        if not (words or real):
            raise DataError(f"{path}, column {label}: neither numbers nor words; convert or drop the column")
        wrong = column.isna().to_numpy(bool)
        numeric = numeric and real
        if real:
            wrong = wrong | ~np.isfinite(column.to_numpy(np.float64, na_value=np.nan))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0]) + 1
            raise DataError(f"{path}, row {row}, column {label}: missing or infinite value; fill or drop it")
    return frame.to_numpy(np.float64, copy=True) if numeric else frame.reset_index(drop=True)


# The largest cameras take larger photos; nothing here learns from images of that size.
_MOST_MEGAPIXELS = 50


def _picture(data: bytes, path: Path) -> Image.Image:
    from PIL import Image

    with reading(path, "image"):
        most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # Pillow's own refusal does not give the size
        try:
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        finally:
            Image.MAX_IMAGE_PIXELS = most
        megapixels = image.width * image.height / 1e6
        if megapixels > _MOST_MEGAPIXELS:
            raise DataError(f"{path} has {megapixels:,.0f} megapixels; scale it down to at most {_MOST_MEGAPIXELS}")
        image.load()
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{path} has more than 8 bits a channel; save it with 8")
    return image


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA")


def _pixels(pictures: list[Image.Image], grey: bool) -> NDArray[np.uint8]:
    return np.stack([np.asarray(picture.convert("L" if grey else "RGB"), np.uint8) for picture in pictures])


def _pictures(folder: Path) -> NDArray[np.uint8]:
    """The images directly in a folder, in the order of their names."""
    with reading(folder, "image"):
        paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES and p.is_file())
    if not paths:
        raise DataError(f"{folder} holds no {', '.join(PICTURES)} images (n=0)")
    pictures: list[Image.Image] = []
    for path in paths:
        pictures.append(_picture(read_bytes(path), path))
        if len(pictures) == 1:
            # All are held at once, then copied in three channels.
            check_unpacked(2 * 3 * len(paths) * pictures[0].width * pictures[0].height, folder)
        if pictures[-1].size != pictures[0].size:
            sizes = [f"{p.width}×{p.height}" for p in (pictures[-1], pictures[0])]
            raise DataError(f"{path} is {sizes[0]} pixels and {paths[0].name} {sizes[1]}; bring all images to one size")
    return _pixels(pictures, all(_is_grey(picture) for picture in pictures))
