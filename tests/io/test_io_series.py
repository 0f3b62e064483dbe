"""Recordings from every kind of file, and one clear sentence for every bad one."""

import io
import sys
from pathlib import Path

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io

import dynwarp as dw
from dynwarp.errors import ArgumentError, MissingDependencyError, SeriesError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
VALUES = np.random.default_rng(0).standard_normal((30, 2)) * [3.0, 0.1] + [10.0, -4.0]


def write_text(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def write_table(path, delimiter, header):
    lines = [delimiter.join(header)] if header else []
    lines += [delimiter.join(map(repr, row)) for row in VALUES.tolist()]
    return write_text(path, "\n".join(lines) + "\n")


def write_mat73(path, **arrays):
    """As MATLAB does: HDF5 behind a block of text, columns first."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in arrays.items():
            file[name] = value.T
        file["#refs#/a"] = np.zeros((5, 5))
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(128))


def write_h5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            file[name] = value


WRITERS = {
    "npy": lambda path: np.save(path, VALUES),
    "npz": lambda path: np.savez(path, x=VALUES),
    "mat": lambda path: scipy.io.savemat(path, {"x": VALUES}),
    "h5": lambda path: write_h5(path, x=VALUES),
    "hdf5": lambda path: write_h5(path, **{"group/x": VALUES}),
}


class TestFormats:
    @pytest.mark.parametrize("suffix", WRITERS)
    def test_arrays(self, tmp_path, suffix):
        path = tmp_path / f"recording.{suffix}"
        WRITERS[suffix](path)
        series = dw.io.read_series(path, standardise=False)
        np.testing.assert_array_equal(series.values, VALUES)
        assert series.values.dtype == np.float64
        assert series.columns == ("column 0", "column 1")
        assert series.source == path.name

    def test_matlab_7_3_is_transposed_back(self, tmp_path):
        path = tmp_path / "recording.mat"
        write_mat73(path, x=VALUES)
        np.testing.assert_array_equal(dw.io.read_series(path, standardise=False).values, VALUES)

    @pytest.mark.parametrize("shape", [(1, 30), (30, 1)])
    def test_matlab_vectors(self, tmp_path, shape):
        vector = VALUES[:, 0].reshape(shape)
        scipy.io.savemat(tmp_path / "a.mat", {"x": vector})
        write_mat73(tmp_path / "b.mat", x=vector)
        for name in "ab":
            series = dw.io.read_series(tmp_path / f"{name}.mat", standardise=False)
            np.testing.assert_array_equal(series.values, VALUES[:, :1])

    @pytest.mark.parametrize("header", [None, ["left", "right"]])
    @pytest.mark.parametrize(
        ("name", "delimiter"),
        [
            ("a.csv", ","),
            ("a.csv", ";"),
            ("a.csv", "\t"),
            ("a.tsv", "\t"),
            ("a.txt", " "),
            ("a.txt", ", "),
            ("A.CSV", ","),
        ],
    )
    def test_tables(self, tmp_path, name, delimiter, header):
        path = write_table(tmp_path / name, delimiter, header)
        series = dw.io.read_series(path, standardise=False)
        np.testing.assert_array_equal(series.values, VALUES)
        assert series.columns == (tuple(header) if header else ("column 0", "column 1"))

    def test_a_blank_line_in_one_column_is_a_missing_value(self, tmp_path):
        path = tmp_path / "one.csv"
        path.write_text("\nx\n\n1\n\n3\n# remark\n4\n\n")
        series = dw.io.read_series(path, missing="keep", standardise=False)
        np.testing.assert_array_equal(series.values[:, 0], [1, np.nan, 3, 4])
        with pytest.raises(dw.errors.SeriesError, match="1 value"):
            dw.io.read_series(path)

    def test_a_row_of_tabs_is_one_of_missing_values(self, tmp_path):
        path = write_text(tmp_path / "two.tsv", "x\ty\n1\t2\n\t\n\n3\t5\n")
        series = dw.io.read_series(path, missing="keep", standardise=False)
        np.testing.assert_array_equal(series.values, [[1, 2], [np.nan, np.nan], [3, 5]])

    def test_comments_blank_lines_quotes_and_byte_order_marks(self, tmp_path):
        text = '\ufeff# made by hand\n\n"a b", "c"\n1, 2\n% a remark\n\n3, 5\n'
        series = dw.io.read_series(write_text(tmp_path / "a.csv", text), standardise=False)
        assert series.columns == ("a b", "c")
        np.testing.assert_array_equal(series.values, [[1, 2], [3, 5]])

    def test_one_column_of_text(self, tmp_path):
        series = dw.io.read_series(write_text(tmp_path / "a.txt", "1\n2\n4\n"), standardise=False)
        np.testing.assert_array_equal(series.values, [[1], [2], [4]])

    def test_header_and_delimiter_can_be_told(self, tmp_path):
        path = write_text(tmp_path / "a.txt", "1|2\n3|4\n5|7\n")
        series = dw.io.read_series(path, header=True, delimiter="|", standardise=False)
        assert series.columns == ("1", "2")
        np.testing.assert_array_equal(series.values, [[3, 4], [5, 7]])

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16, np.uint8, bool])
    def test_every_real_dtype(self, tmp_path, dtype):
        x = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
        np.save(tmp_path / "a.npy", x)
        series = dw.io.read_series(tmp_path / "a.npy", standardise=False)
        assert series.values.dtype == np.float64
        np.testing.assert_array_equal(series.values, x.astype(float))

    def test_transpose(self, tmp_path):
        np.save(tmp_path / "a.npy", VALUES.T)
        np.testing.assert_array_equal(
            dw.io.read_series(tmp_path / "a.npy", transpose=True, standardise=False).values, VALUES
        )


class TestChoices:
    def test_key(self, tmp_path):
        for suffix, write in {"npz": np.savez, "h5": write_h5}.items():
            path = tmp_path / f"a.{suffix}"
            write(path, x=VALUES, y=VALUES[:, 0])
            np.testing.assert_array_equal(dw.io.read_series(path, key="y", standardise=False).values, VALUES[:, :1])
            with pytest.raises(SeriesError, match=r"name the array with `key`; it holds 'x' \(30, 2\) float64, 'y'"):
                dw.io.read_series(path)
            with pytest.raises(SeriesError, match=r"has no array 'z'; it holds 'x' \(30, 2\) float64, 'y' \(30,\)"):
                dw.io.read_series(path, key="z")

    def test_the_only_possible_array_needs_no_key(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=VALUES, rate=np.array(100.0), name=np.array("subject 1"))
        np.testing.assert_array_equal(dw.io.read_series(tmp_path / "a.npz", standardise=False).values, VALUES)

    @pytest.mark.parametrize("columns", ["right", 1, -1, ["right"], [np.int64(1)]])
    def test_one_column(self, tmp_path, columns):
        path = write_table(tmp_path / "a.csv", ",", ["left", "right"])
        series = dw.io.read_series(path, columns=columns, standardise=False)
        np.testing.assert_array_equal(series.values, VALUES[:, 1:])
        assert series.columns == ("right",)

    def test_the_order_of_columns_is_that_asked_for(self, tmp_path):
        path = write_table(tmp_path / "a.csv", ",", ["left", "right"])
        series = dw.io.read_series(path, columns=["right", "left"], standardise=False)
        np.testing.assert_array_equal(series.values, VALUES[:, ::-1])

    def test_a_text_column_may_be_left_out(self, tmp_path):
        path = write_text(tmp_path / "a.csv", "x,label\n1,a\n2,b\n")
        assert dw.io.read_series(path, columns="x").columns == ("x",)

    @pytest.mark.parametrize("name", ["t", "Time", "time (s)", "TIME [ms]"])
    def test_a_column_of_time(self, tmp_path, name):
        path = write_text(tmp_path / "a.csv", f"{name},x\n0.5,1\n0.75,2\n1.0,4\n")
        series = dw.io.read_series(path, standardise=False)
        assert series.columns == ("x",)
        assert series.sampling_interval == 0.25
        assert dw.io.read_series(path, sampling_interval=2.0).sampling_interval == 2.0
        assert dw.io.read_series(path, time=None).columns == (name, "x")

    def test_a_named_column_of_time(self, tmp_path):
        path = write_text(tmp_path / "a.csv", "clock,x\n0,1\n2,2\n4,5\n")
        assert dw.io.read_series(path, time="clock").sampling_interval == 2.0
        assert dw.io.read_series(path).columns == ("clock", "x")


class TestSeries:
    def test_standardisation(self, tmp_path):
        np.save(tmp_path / "a.npy", VALUES)
        series = dw.io.read_series(tmp_path / "a.npy")
        np.testing.assert_allclose(series.values.mean(0), 0, atol=1e-13)
        np.testing.assert_allclose(series.values.std(0), 1, rtol=1e-13)
        np.testing.assert_allclose(series.mean, VALUES.mean(0), rtol=1e-15)
        np.testing.assert_allclose(series.to_original(series.values), VALUES, rtol=1e-14)
        np.testing.assert_allclose(series.to_standard(VALUES), series.values, atol=1e-14)

    def test_undone_under_jit_in_single_precision_and_differentiated(self):
        series = dw.io.make_series(VALUES)
        x = jnp.asarray(series.values, jnp.float32)
        original = eqx.filter_jit(series.to_original)(x)
        assert original.dtype == jnp.float32
        np.testing.assert_allclose(original, VALUES, rtol=3e-6)
        batch = jax.vmap(series.to_original)(jnp.stack([x, x]))
        np.testing.assert_array_equal(batch[0], batch[1])
        slope = jax.jacobian(series.to_original)(jnp.zeros(2))
        np.testing.assert_allclose(slope, np.diag(VALUES.std(0)), rtol=1e-14)

    def test_embedding_after_standardisation(self):
        series = dw.io.make_series(VALUES, columns=["a", "b"], embed=3, lag=4)
        plain = dw.io.make_series(VALUES)
        np.testing.assert_array_equal(series.values, dw.io.embed(plain.values, 3, 4))
        assert series.columns == ("a", "b", "a[-4]", "b[-4]", "a[-8]", "b[-8]")
        assert (series.dimension, series.lag) == (3, 4)
        np.testing.assert_allclose(series.to_original(series.values), dw.io.embed(VALUES, 3, 4), rtol=1e-14)

    def test_lag_from_mutual_information(self):
        x = np.sin(2 * np.pi * np.arange(1000) / 40)
        series = dw.io.make_series(x, embed=2)
        assert series.lag == 10
        # A quarter of a period apart, the copies of a sine lie on a circle.
        np.testing.assert_allclose((series.values**2).sum(1), 2.0, rtol=1e-12)

    def test_split(self):
        series = dw.io.make_series(np.arange(20.0))
        first, second = series.split(0.7)
        np.testing.assert_array_equal(np.concatenate([first.values, second.values]), series.values)
        assert first.values.shape == (14, 1)
        np.testing.assert_array_equal(second.mean, series.mean)
        assert second.source == series.source

    def test_split_of_an_embedding_shares_no_sample(self):
        series = dw.io.make_series(np.arange(40.0), embed=3, lag=2, standardise=False)
        first, second = series.split(0.5)
        assert first.values.max() < second.values.min()
        assert first.values.max() + 1 == second.values.min()
        assert series.split(0.5, gap=0)[1].values.shape[0] == series.values.shape[0] - first.values.shape[0]

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"fraction": 1.0}, ArgumentError, "between 0 and 1; got 1.0"),
            ({"fraction": 0.01}, SeriesError, "10 rows are too few"),
            ({"fraction": 0.5, "gap": 4}, SeriesError, "10 rows are too few for a first part of 5, a gap of 4"),
            ({"fraction": 0.5, "gap": -1}, ArgumentError, "`gap`"),
        ],
    )
    def test_split_errors(self, arguments, error, message):
        with pytest.raises(error, match=message):
            dw.io.make_series(np.arange(10.0)).split(**arguments)

    def test_summary_goes_into_a_model_file(self, tmp_path):
        series = dw.io.make_series(VALUES, embed=2, lag=3, sampling_interval=0.5, source="here")
        path = dw.io.save(tmp_path / "m", dw.systems.Henon(), metadata={"series": series.summary()})
        kept = dw.io.load_metadata(path)["series"]
        assert kept["mean"] == series.mean.tolist()
        assert (kept["lag"], kept["dimension"], kept["rows"], kept["source"]) == (3, 2, 27, "here")

    def test_is_a_pytree_that_models_can_hold(self):
        series = dw.io.make_series(VALUES)
        assert eqx.tree_equal(series, jax.tree.map(lambda x: x, series))

    def test_make_series_takes_jax_arrays(self):
        series = dw.io.make_series(jnp.arange(5, dtype=jnp.float32), standardise=False)
        assert series.values.dtype == np.float64
        with pytest.raises(SeriesError, match="1 columns and 2 names"):
            dw.io.make_series(jnp.arange(5.0), columns=["a", "b"])


class TestDefault:
    def test_electrocardiogram(self):
        import pywt.data

        series = dw.io.default_series()
        samples = pywt.data.ecg().astype(float)
        lost = (series.dimension - 1) * series.lag
        assert series.values.shape == (1024 - lost, 5)
        assert series.lag == dw.io.choose_lag(samples)
        assert 1 < series.lag < 328 / 4
        np.testing.assert_allclose(series.to_original(series.values)[:, 0], samples[lost:], atol=1e-12)
        assert series.columns[0] == "ecg"
        assert series.sampling_interval == 1 / 360

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pywt.data", None)
        with pytest.raises(MissingDependencyError, match=r"PyWavelets.*dynwarp\[io\]"):
            dw.io.default_series()

    @pytest.mark.skipif(not DATA.is_dir(), reason="the shared recordings are not here")
    def test_shared_recordings(self):
        series = dw.io.read_series(DATA / "fmri_20d.npy")
        np.testing.assert_allclose(series.to_original(series.values), np.load(DATA / "fmri_20d.npy"), atol=1e-12)
        # A model is no recording, but its arrays have names.
        with pytest.raises(SeriesError, match="name the array with `key`"):
            dw.io.read_series(DATA / "alrnn_lorenz63_m20_p2.npz")


def npy_bytes(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


BAD_TABLES = [
    ("", "is empty"),
    ("# only a remark\n", "is empty"),
    ("a,b\n", "a header and no numbers"),
    ("1,2\n", "one time step is no recording"),
    ("1,2\n1,nan\n2,3\n", "1 values are missing, NaN or infinite, the first in column 'column 1', row 1"),
    ("a,b\n1,2\n1,\n2,3\n", "the first in column 'b', row 1"),
    ("a,b\n1,2\n1,inf\n2,3\n", "the first in column 'b', row 1"),
    ("a,b\n1,2\n1,3\n1,4\n", "column 'a' is constant"),
    ("a,b,c\n1,x,2020-01-01\n2,y,2020-01-02\n", "not all of column 'b', 'c' is numbers"),
    ("a,b\n1,2\n1\n2,3\n", "row 2 of the data has 1 cells where 2 were expected"),
    ("a,a\n1,2\n2,3\n", "two columns are called 'a'"),
    ("time,a\n0,1\n1,2\n5,3\n", "'time' does not run in even steps"),
    ("time,a\n0,1\n0,2\n0,3\n", "'time' does not run in even steps"),
]


class TestBadInput:
    @pytest.mark.parametrize(("text", "message"), BAD_TABLES)
    def test_tables(self, tmp_path, text, message):
        with pytest.raises(SeriesError, match=message) as caught:
            dw.io.read_series(write_text(tmp_path / "a.csv", text))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros((0, 3)), "is empty: it has no rows"),
            (np.zeros((3, 0)), "is empty: it has no columns"),
            (np.arange(5.0)[None], "one time step.*transpose=True"),
            (np.zeros((2, 2, 2)), r"got \(2, 2, 2\)"),
            (np.array(3.0), r"got \(\)"),
            (np.arange(4) * 1j, "real numbers; got complex128"),
            (np.array(["a", "b"]), "real numbers; got an array of <U1"),
            (np.array(["2020-01-01", "2020-01-02"], "datetime64[D]"), "real numbers; got an array of datetime64"),
            (np.zeros(3, [("x", float), ("y", float)]), "records with fields x, y"),
            (np.array([[1.0, 2.0], [1.0, 3.0]]), "'column 0' is constant"),
            (np.array([1.0, np.nan, 2.0]), "NaN or infinite"),
            (np.array([1e300, -1e300, 1e300]), "standard deviation of column 'column 0'"),
        ],
    )
    def test_arrays(self, tmp_path, array, message):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(SeriesError, match=message):
            dw.io.read_series(tmp_path / "a.npy")

    def test_objects_are_never_unpickled(self, tmp_path):
        objects = np.array([print, None], dtype=object)
        np.save(tmp_path / "a.npy", objects, allow_pickle=True)
        np.savez(tmp_path / "a.npz", objects)
        for name in ("a.npy", "a.npz"):
            with pytest.raises(SeriesError, match="Python objects, which are not read because they can run code"):
                dw.io.read_series(tmp_path / name)

    def test_other_arrays_may_be_objects(self, tmp_path):
        np.savez(tmp_path / "a.npz", bad=np.array([None]), x=VALUES)
        np.testing.assert_array_equal(dw.io.read_series(tmp_path / "a.npz", key="x", standardise=False).values, VALUES)

    @pytest.mark.parametrize("suffix", WRITERS)
    @pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
    def test_truncated_files(self, tmp_path, suffix, part):
        path = tmp_path / f"a.{suffix}"
        WRITERS[suffix](path)
        content = path.read_bytes()
        path.write_bytes(content[: int(part * len(content))])
        with pytest.raises(SeriesError, match="damaged, truncated or of another kind"):
            dw.io.read_series(path)

    def test_a_matlab_file_with_an_unknown_type(self, tmp_path):
        # The type of the numbers stands after the name; scipy looks an unknown one up beyond its table.
        path = tmp_path / "a.mat"
        scipy.io.savemat(path, {"x": VALUES})
        content = bytearray(path.read_bytes())
        assert content[176] == 9
        content[176] = 200
        path.write_bytes(content)
        with pytest.raises(SeriesError, match="damaged, truncated or of another kind"):
            dw.io.read_series(path)

    def test_matlab_structures_are_passed_over(self, tmp_path):
        scipy.io.savemat(
            tmp_path / "a.mat", {"x": VALUES, "info": {"rate": 3.0}, "names": np.array(["a", "b"], object)}
        )
        np.testing.assert_array_equal(dw.io.read_series(tmp_path / "a.mat", standardise=False).values, VALUES)

    @pytest.mark.parametrize("suffix", ["npy", "npz", "mat", "h5", "csv", "tsv", "txt"])
    def test_files_of_another_kind(self, tmp_path, suffix):
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0" + bytes(range(256)) * 4)
        with pytest.raises(SeriesError, match=r"of another kind|is not text"):
            dw.io.read_series(path)

    def test_names_that_lie(self, tmp_path):
        (tmp_path / "a.npz").write_bytes(npy_bytes(VALUES))
        np.savez(tmp_path / "b", x=VALUES)
        (tmp_path / "b.npz").rename(tmp_path / "b.npy")
        for name in ("a.npz", "b.npy"):
            with pytest.raises(SeriesError, match="of another kind"):
                dw.io.read_series(tmp_path / name)

    def test_a_header_that_promises_more_than_there_is(self, tmp_path):
        content = npy_bytes(np.zeros(10)).replace(b"(10,)", b"(10000000000000,)")
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(SeriesError, match="damaged"):
            dw.io.read_series(tmp_path / "a.npy")

    @pytest.mark.parametrize("name", ["a.csv", "a.npy", "a.h5"])
    def test_empty_files(self, tmp_path, name):
        (tmp_path / name).touch()
        with pytest.raises(SeriesError, match="is empty"):
            dw.io.read_series(tmp_path / name)

    def test_missing_files_folders_and_extensions(self, tmp_path):
        with pytest.raises(SeriesError, match="There is no file"):
            dw.io.read_series(tmp_path / "none.csv")
        with pytest.raises(SeriesError, match="is a folder"):
            dw.io.read_series(tmp_path)
        (tmp_path / "a.xyz").write_text("1\n2\n")
        with pytest.raises(SeriesError, match=r"unknown extension '.xyz'; known are .csv, .tsv, .txt, .npy"):
            dw.io.read_series(tmp_path / "a.xyz")

    def test_an_archive_without_arrays(self, tmp_path):
        np.savez(tmp_path / "a.npz")
        write_h5(tmp_path / "a.h5")
        for name in ("a.npz", "a.h5"):
            with pytest.raises(SeriesError, match="it holds nothing"):
                dw.io.read_series(tmp_path / name)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"columns": "c"}, SeriesError, "no column 'c'; it has 'a', 'b', numbers 0 to 1"),
            ({"columns": 2}, SeriesError, "no column 2"),
            ({"columns": ["a", 0]}, SeriesError, "names a column twice"),
            ({"columns": []}, SeriesError, "is empty"),
            ({"time": "c"}, SeriesError, "no column 'c' for the time"),
            ({"key": "x"}, SeriesError, "use `columns` in place of `key`"),
            ({"transpose": True}, SeriesError, "`transpose` is for arrays"),
            ({"embed": 5, "lag": 10}, SeriesError, "30 time steps are too few for dimension 5 at lag 10"),
            ({"embed": 0}, ArgumentError, "`embed` must be a whole number"),
            ({"embed": 2, "lag": 0}, ArgumentError, "`lag` must be a whole number"),
            ({"embed": 2, "lag": "best"}, ArgumentError, "'mutual_information'; got 'best'"),
            ({"sampling_interval": -1.0}, ArgumentError, "`sampling_interval` must be positive"),
        ],
    )
    def test_options(self, tmp_path, options, error, message):
        path = write_table(tmp_path / "a.csv", ",", ["a", "b"])
        with pytest.raises(error, match=message):
            dw.io.read_series(path, **options)

    def test_too_short_to_choose_a_lag(self, tmp_path):
        path = write_text(tmp_path / "a.csv", "1\n2\n4\n")
        with pytest.raises(SeriesError, match="3 time steps are too few to choose an embedding"):
            dw.io.read_series(path, embed=2)

    def test_without_h5py(self, tmp_path, monkeypatch):
        write_h5(tmp_path / "a.h5", x=VALUES)
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(MissingDependencyError, match=r"h5py, which is not installed: pip install 'dynwarp\[io\]'"):
            dw.io.read_series(tmp_path / "a.h5")
