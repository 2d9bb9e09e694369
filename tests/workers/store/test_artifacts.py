"""The artifact store on a folder and on an object store in memory."""

import hashlib
import secrets

import pytest

from workers.errors import InvalidPath
from workers.store import ArtifactStore
from workers.store.artifacts import job_path


@pytest.fixture(params=["folder", "memory"])
def artifacts(request, tmp_path):
    if request.param == "folder":
        return ArtifactStore(str(tmp_path / "made on demand"))
    return ArtifactStore(f"memory://{secrets.token_hex(4)}")


def test_a_file_is_copied_whole_with_its_size_and_hash(artifacts, tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "local").write_bytes(content)
    path = job_path("job_1", 2, "video.mp4")
    stored = artifacts.write_file(tmp_path / "local", path)
    sha256 = hashlib.sha256(content).hexdigest()
    assert (stored.path, stored.bytes, stored.sha256) == (
        "jobs/job_1/2/video.mp4",
        2_560_000,
        sha256,
    )
    assert artifacts.size(path) == 2_560_000
    with artifacts.open(path) as reader:
        reader.seek(1_000_000)
        assert reader.read(10) == content[1_000_000:1_000_010]


def test_writing_again_replaces(artifacts):
    artifacts.write_bytes(b"old and longer", "a/b")
    artifacts.write_bytes(b"new", "a/b")
    with artifacts.open("a/b") as reader:
        assert reader.read() == b"new"


def test_delete_takes_files_and_folders_and_forgives_absence(artifacts):
    for path in ("jobs/j/1/a", "jobs/j/2/b", "jobs/k/1/c"):
        artifacts.write_bytes(b"x", path)
    artifacts.delete(["jobs/j/1/a", "jobs/j", "jobs/j", "nothing"])
    left = [p for p in ("jobs/j/1/a", "jobs/j/2/b", "jobs/k/1/c") if artifacts.exists(p)]
    assert left == ["jobs/k/1/c"]


def test_absent_files_raise(artifacts):
    assert not artifacts.exists("nothing")
    for call in (artifacts.open, artifacts.size):
        with pytest.raises(FileNotFoundError):
            call("nothing")


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../x", "a/../../x", "a\0b", "a\\..\\b"])
def test_paths_stay_inside(artifacts, path):
    calls = [
        lambda: artifacts.write_bytes(b"x", path),
        lambda: artifacts.open(path),
        lambda: artifacts.size(path),
        lambda: artifacts.exists(path),
        lambda: artifacts.delete([path]),
    ]
    for call in calls:
        with pytest.raises(InvalidPath):
            call()


def test_a_failed_write_leaves_nothing_and_keeps_the_old(tmp_path, monkeypatch):
    artifacts = ArtifactStore(str(tmp_path))
    artifacts.write_bytes(b"old", "a/b")

    def disk_full(_descriptor):
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="no space"):
        artifacts.write_bytes(b"new", "a/b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b").read_bytes() == b"old"
