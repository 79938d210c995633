import hashlib
import http.server
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dynabound.lab.tasks import download as module
from dynabound.lab.tasks.catalog import SOURCES, Source
from dynabound.lab.tasks.datasets import DataError, load
from dynabound.lab.tasks.download import download, ensure_downloaded


@pytest.fixture
def web(tmp_path):
    """A folder, and the address under which a server on this machine shows it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "web"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


TEXTS = {"ptb.train.txt": b"a b c\n", "ptb.valid.txt": b"a b\n", "ptb.test.txt": b"c\n"}


@pytest.fixture
def ptb(web, monkeypatch):
    folder, address = web
    (folder / "good").mkdir()
    (folder / "bad").mkdir()
    for name, text in TEXTS.items():
        (folder / "good" / name).write_bytes(text)
        (folder / "bad" / name).write_bytes(text + b"not what was promised")
    downloads = {name: hashlib.md5(text).hexdigest() for name, text in TEXTS.items()}
    contents = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}

    def use(*mirrors):
        source = Source("text", tuple(TEXTS), tuple(f"{address}{mirror}/" for mirror in mirrors), downloads, contents)
        monkeypatch.setitem(SOURCES, "ptb", source)

    return use


def test_fetches_from_the_first_mirror_that_has_the_right_thing(ptb, tmp_path):
    ptb("nowhere", "bad", "good")
    folder = download("ptb", tmp_path / "data")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == TEXTS
    assert len(load("ptb", tmp_path / "data").train) == 4


def test_fetch_repairs_and_does_not_fetch_twice(ptb, tmp_path, web):
    ptb("good")
    folder = download("ptb", tmp_path / "data")
    (folder / "ptb.valid.txt").write_bytes(b"damaged")
    with pytest.raises(DataError, match="dynabound data fetch ptb"):
        load("ptb", tmp_path / "data")
    (web[0] / "good" / "ptb.train.txt").unlink()  # the local copy is intact: it is not downloaded
    download("ptb", tmp_path / "data")
    load("ptb", tmp_path / "data")


def test_of_several_processes_one_downloads(ptb, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ptb("good")
    together, fetched = threading.Barrier(4), []
    monkeypatch.setattr(module, "download", lambda *arguments: fetched.append(download(*arguments)))

    def want(_):
        together.wait()
        ensure_downloaded("ptb", tmp_path / "data")
        return len(load("ptb", tmp_path / "data").train)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(want, range(4))) == [4] * 4
    assert len(fetched) == 1
    (tmp_path / "data" / "ptb" / "ptb.test.txt").unlink()  # as if the one who fetched had been killed
    ensure_downloaded("ptb", tmp_path / "data")
    assert len(fetched) == 2
    ensure_downloaded("digits", tmp_path / "data")
    assert len(fetched) == 2


def test_an_unwritable_data_folder_is_a_clear_error(ptb, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ptb("good")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"ptb: cannot write to .*give another --data-dir"):
        ensure_downloaded("ptb", tmp_path / "file")


def test_nothing_is_left_when_no_mirror_has_it(ptb, tmp_path):
    ptb("nowhere", "bad")
    with pytest.raises(DataError, match=r"ptb\.train\.txt could not be fetched .*404.*hash.*put it into") as raised:
        download("ptb", tmp_path / "data")
    assert "\n" not in str(raised.value)
    assert not list((tmp_path / "data" / "ptb").iterdir())


def test_progress_counts_the_bytes(ptb, tmp_path):
    ptb("good")
    seen = {}

    class Bar:
        total = 0

        def __init__(self, file):
            seen[file] = 0
            self.file = file

        def update(self, size):
            seen[self.file] += size

        def reset(self):
            seen[self.file] = 0

        def close(self):
            pass

    download("ptb", tmp_path / "data", Bar)
    assert seen == {name: len(text) for name, text in TEXTS.items()}


def archive(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return buffer.getvalue()


def serve_cifar(web, monkeypatch, members):
    folder, address = web
    body = archive(members)
    (folder / "cifar.tar.gz").write_bytes(body)
    digest = {"cifar.tar.gz": hashlib.sha256(body).hexdigest()}
    source = Source("cifar", SOURCES["cifar10"].files, (address,), digest, {}, (10, 10, 2, 2))
    monkeypatch.setitem(SOURCES, "cifar10", source)


def test_only_known_files_leave_the_archive(web, tmp_path, monkeypatch):
    files = {
        f"cifar-10-batches-bin/{name}": b"".join(bytes([label] + [1] * 12) for label in range(10))
        for name in SOURCES["cifar10"].files
    }
    serve_cifar(
        web, monkeypatch, {"../evil": b"1", "/tmp/evil-dynabound": b"1", "cifar-10-batches-bin/x": b"1", **files}
    )
    folder = download("cifar10", tmp_path / "data")
    assert sorted(path.name for path in folder.iterdir()) == sorted(SOURCES["cifar10"].files)
    assert not list(tmp_path.rglob("evil*"))
    assert load("cifar10", tmp_path / "data").test[1].tolist() == list(range(10))
    monkeypatch.setitem(SOURCES, "cifar10-2000", SOURCES["cifar10"])
    assert download("cifar10-2000", tmp_path / "data") == folder


def test_unknown_name_and_unwritable_folder(tmp_path):
    with pytest.raises(DataError, match="'digits': nothing to fetch; must be one of "):
        download("digits", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write to .* give another --data-dir"):
        download("ptb", tmp_path / "file")


@pytest.mark.parametrize("name", SOURCES)
def test_every_download_is_encrypted_and_has_a_sha256(name):
    source = SOURCES[name]
    assert all(mirror.startswith("https://") for mirror in source.mirrors)
    digests = source.contents.values() if source.contents else source.downloads.values()
    assert digests
    assert all(len(digest) == 64 for digest in digests)
    assert not source.contents or source.contents.keys() == set(source.files)
