import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from dynabound.lab.tasks import datasets as data
from dynabound.lab.tasks.catalog import SOURCES, TASKS, Source
from dynabound.lab.tasks.datasets import DataError, load, search_path


def sha256(contents):
    return hashlib.sha256(contents).hexdigest()


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def idx_files(monkeypatch):
    """A little MNIST: the arrays, the files' contents, and an entry in the table that knows them."""
    rng = np.random.default_rng(0)
    shapes = ((12, 5, 4), (12,), (6, 5, 4), (6,))
    arrays = [rng.integers(0, 10, shape).astype(np.uint8) for shape in shapes]
    files = dict(zip(SOURCES["mnist"].files, map(idx, arrays), strict=True))
    source = Source("idx", tuple(files), (), {}, {name: sha256(body) for name, body in files.items()}, (12, 6, 5, 4))
    monkeypatch.setitem(SOURCES, "mnist", source)
    monkeypatch.setitem(SOURCES, "fashion-mnist", Source("idx", tuple(files), (), {}, {}, (12, 6, 5, 4)))
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent")
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    return arrays, files


def write(folder, files, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(body) if zipped else body)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", ["mnist", "."])
def test_idx_files_are_read(idx_files, tmp_path, zipped, place):
    arrays, files = idx_files
    write(tmp_path / place, files, zipped)
    loaded = load("mnist", tmp_path)
    for tensor, array in zip((*loaded.train, *loaded.test), arrays, strict=True):
        assert np.array_equal(tensor.squeeze().numpy(), array)
    assert loaded.train[0].shape == (12, 1, 5, 4)
    assert loaded.train[1].dtype == torch.int64
    assert not loaded.augment


def test_variable_names_the_folder_and_the_argument_wins(idx_files, tmp_path, monkeypatch):
    _, files = idx_files
    write(tmp_path / "variable", files)
    write(tmp_path / "argument", files)
    monkeypatch.setenv("DYNABOUND_DATA", str(tmp_path / "variable"))
    assert data.locate("mnist") == tmp_path / "variable"
    assert data.locate("mnist", tmp_path / "argument") == tmp_path / "argument"
    assert data.locate("mnist", tmp_path / "nowhere") == tmp_path / "variable"


def test_a_packaged_folder_is_found(idx_files, tmp_path, monkeypatch):
    _, files = idx_files
    write(tmp_path / "packaged", files, zipped=True)
    source = Source("idx", tuple(files), (), {}, {}, (12, 6, 5, 4), folders=(str(tmp_path / "packaged"),))
    monkeypatch.setitem(SOURCES, "fashion-mnist", source)
    assert load("fashion-mnist", tmp_path / "nowhere").test[0].shape == (6, 1, 5, 4)
    (tmp_path / "packaged" / f"{IMAGES}.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"dynabound data fetch fashion-mnist$"):  # not into the package's folder
        load("fashion-mnist", tmp_path / "nowhere")


IMAGES = "train-images-idx3-ubyte"
DAMAGES = {
    "missing": (lambda body: None, "is missing"),
    "empty": (lambda body: b"", "SHA-256"),
    "truncated": (lambda body: body[:-1], "SHA-256"),
    "one bit": (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "SHA-256"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "train-labels-idx1-ubyte"])
@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_a_line_that_names_file_and_remedy(idx_files, tmp_path, zipped, name, damage, message):
    _, files = idx_files
    changed = {file: damage(body) if file == name else body for file, body in files.items()}
    write(tmp_path / "mnist", {file: body for file, body in changed.items() if body is not None}, zipped)
    with pytest.raises(DataError, match=message) as raised:
        load("mnist", tmp_path)
    assert name in str(raised.value)
    assert str(raised.value).endswith(f"dynabound data fetch mnist --data-dir {tmp_path}")
    assert "\n" not in str(raised.value)


def test_gzip_damage_is_noticed(idx_files, tmp_path, monkeypatch):
    _, files = idx_files
    write(tmp_path / "fashion-mnist", files, zipped=True)
    path = tmp_path / "fashion-mnist" / f"{IMAGES}.gz"
    whole = path.read_bytes()
    for broken in (whole[:-4], whole[:40], b"no gzip at all", whole[:60] + b"\xff" + whole[61:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="cannot be read"):
            load("fashion-mnist", tmp_path)


@pytest.fixture
def cifar(monkeypatch, tmp_path):
    """A little CIFAR-10, ten records to a file, one of each class."""
    monkeypatch.setitem(SOURCES, "cifar10", Source("cifar", SOURCES["cifar10"].files, (), {}, {}, (10, 10, 6, 6)))
    rng = np.random.default_rng(1)
    records = {}
    for name in SOURCES["cifar10"].files:
        labels, pixels = rng.permutation(10)[:, None], rng.integers(0, 256, (10, 3 * 6 * 6))
        records[name] = np.concatenate([labels, pixels], 1).astype(np.uint8)
    write(tmp_path / "cifar-10-batches-bin", {name: table.tobytes() for name, table in records.items()})
    return records


def test_cifar_is_read(cifar, tmp_path):
    loaded = load("cifar10", tmp_path)
    assert loaded.augment
    assert loaded.train[0].shape == (50, 3, 6, 6)
    third = cifar["data_batch_3.bin"]
    assert np.array_equal(loaded.train[1][20:30].numpy(), third[:, 0])
    assert loaded.train[0][21, 2, 3, 4] == third[1, 1 + 2 * 36 + 3 * 6 + 4]
    assert np.array_equal(loaded.test[1].numpy(), cifar["test_batch.bin"][:, 0])


def test_a_task_that_shares_the_files_of_cifar_has_fewer_test_images(cifar, monkeypatch, tmp_path):
    monkeypatch.setitem(SOURCES, "cifar10-2000", SOURCES["cifar10"])
    monkeypatch.setitem(TASKS, "cifar10-2000", replace(TASKS["cifar10-2000"], test_images=4))
    all_images, fewer = load("cifar10", tmp_path), load("cifar10-2000", tmp_path)
    assert torch.equal(fewer.train[0], all_images.train[0])
    assert all(torch.equal(few, every[:4]) for few, every in zip(fewer.test, all_images.test, strict=True))
    assert search_path("cifar10-2000", tmp_path) == search_path("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda body: body[:-1], "holds 1089 bytes; expected 10 records of 109 bytes"),
        (lambda body: b"\x0b" + body[1:], "has a label 11"),
        (lambda body: bytes([(body[0] + 1) % 10]) + body[1:], "has training labels in the numbers .*equally many"),
    ],
)
def test_damaged_cifar_is_refused(cifar, tmp_path, damage, message):
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_5.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=message):
        load("cifar10", tmp_path)
    with pytest.raises(DataError, match=f"fetch cifar10 --data-dir {tmp_path}$"):
        load("cifar10", tmp_path)
    path.unlink()
    (tmp_path / "cifar10").mkdir()
    path.parent.rename(tmp_path / "cifar10" / path.parent.name)  # where a download puts it
    with pytest.raises(DataError, match=rf"data_batch_5\.bin is missing.*fetch cifar10 --data-dir {tmp_path}$"):
        load("cifar10", tmp_path)


@pytest.fixture
def ptb(monkeypatch, tmp_path):
    texts = {
        "ptb.train.txt": b" the cat <unk> \n the dog\n",
        "ptb.valid.txt": b" dog bird\n",
        "ptb.test.txt": b" cat\n",
    }
    digests = {name: sha256(text) for name, text in texts.items()}
    monkeypatch.setitem(SOURCES, "ptb", Source("text", tuple(texts), (), {}, digests))
    write(tmp_path / "ptb", texts)
    return texts


def test_text_becomes_numbers(ptb, tmp_path):
    text = load("ptb", tmp_path)
    the, cat, unknown, eos, dog = range(5)
    assert text.train.tolist() == [the, cat, unknown, eos, the, dog, eos]
    assert text.valid.tolist() == [dog, unknown, eos]
    assert text.test.tolist() == [cat, eos]
    assert text.vocabulary == 5


def test_truncated_text_is_noticed(ptb, tmp_path):
    (tmp_path / "ptb" / "ptb.train.txt").write_bytes(ptb["ptb.train.txt"][:-5])
    with pytest.raises(DataError, match=r"ptb\.train\.txt holds 20 bytes of SHA-256"):
        load("ptb", tmp_path)


def test_missing_data_names_places_and_command(tmp_path, monkeypatch):
    monkeypatch.delenv("DYNABOUND_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="dynabound data fetch cifar10, or give --data-dir") as raised:
        load("cifar10", tmp_path)
    assert str(tmp_path / "cifar-10-batches-bin") in str(raised.value)
    assert str(tmp_path / "cache" / "dynabound" / "cifar10") in str(raised.value)
    with pytest.raises(DataError, match="'imagenet': must be one of digits, digits-half, "):
        load("imagenet")


def test_digits_are_split_and_whole():
    from sklearn.datasets import load_digits

    digits = load("digits")
    together = torch.cat([digits.train[0], digits.test[0]]).flatten(1)
    rows = sorted(map(tuple, together.tolist()))
    assert rows == sorted(map(tuple, load_digits().data.astype(int).tolist()))
    assert torch.bincount(digits.test[1]).min() > 20
    assert data.fingerprint(digits) == data.fingerprint(load("digits"))
    digits.train[1][0] += 1
    assert data.fingerprint(digits) != data.fingerprint(load("digits"))


def test_pydoc_is_a_text_to_learn_from():
    text = load("pydoc")
    assert len(text.train) > 50_000
    assert all(0.05 < len(part) / len(text.train) < 0.25 for part in (text.valid, text.test))
    assert int(text.train.max()) == text.vocabulary - 1
    unknown = (text.test == text.vocabulary - 1).float().mean()
    assert 0 < unknown < 0.2
