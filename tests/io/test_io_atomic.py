"""A file is written whole or not at all."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError


def test_writes_bytes_and_text(tmp_path):
    with dw.io.atomic_write(tmp_path / "b") as file:
        file.write(b"\x00\n")
    with dw.io.atomic_write(tmp_path / "t", "w") as file:
        file.write("é")
    assert (tmp_path / "b").read_bytes() == b"\x00\n"
    assert (tmp_path / "t").read_text("utf-8") == "é"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "t"]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")

    def fail():
        with dw.io.atomic_write(path, "w") as file:
            file.write("new" * 10_000)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_holds_the_old_content_until_the_end(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    with dw.io.atomic_write(path, "w") as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_keeps_permissions_and_follows_links(tmp_path):
    path, link = tmp_path / "f", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with dw.io.atomic_write(link, "w") as file:
        file.write("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_new_files_get_the_usual_permissions(tmp_path):
    with dw.io.atomic_write(tmp_path / "a", "w") as file:
        file.write("")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_refuses_folders_devices_and_missing_folders(tmp_path):
    def write(path, mode="wb"):
        with dw.io.atomic_write(path, mode) as file:
            file.write(b"")

    with pytest.raises(ArgumentError, match="folder or a device"):
        write(tmp_path)
    with pytest.raises(ArgumentError, match="folder or a device"):
        write(os.devnull)
    with pytest.raises(ArgumentError, match="does not exist"):
        write(tmp_path / "no" / "f")
    with pytest.raises(ArgumentError, match="`mode`"):
        write(tmp_path / "f", "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    script = """
    import os, signal, sys
    from dynwarp.io._atomic import atomic_write
    with atomic_write(sys.argv[1], "w") as file:
        file.write("new" * 100_000)
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
