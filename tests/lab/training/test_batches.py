from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.tasks.datasets import Images, Text, load
from dynabound.lab.training import batches as module
from dynabound.lab.training.batches import crop_and_flip, make_batches, redistribute

CPU = torch.device("cpu")


def images(number=30, augment=False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (number, 3, 6, 6), generator=generator, dtype=torch.uint8)
    return Images((x, torch.arange(number)), (x[:7], torch.arange(7)), augment=augment)


def words(number=103):
    return Text(torch.arange(number), torch.arange(40), torch.arange(33), number)


def spec(**fields):
    return RunSpec(**{"task": "digits", "batch_size": 8, **fields})


def text_spec(**fields):
    return RunSpec(**{"task": "pydoc", "batch_size": 4, "bptt": 7, **fields})


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own():
    batches = make_batches(images(), spec(), CPU)
    orders = [[y.tolist() for _, y, _ in batches.epoch(epoch)] for epoch in (1, 2)]
    for order in orders:
        assert [len(y) for y in order] == [8, 8, 8, 6]
        assert sorted(chain.from_iterable(order)) == list(range(30))
    assert orders[0] != orders[1]
    again = make_batches(images(), spec(), CPU)
    assert [y.tolist() for _, y, _ in again.epoch(2)] == orders[1]
    other = make_batches(images(), spec(seed=1), CPU)
    assert [y.tolist() for _, y, _ in other.epoch(1)] != orders[0]


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("start", range(5))
def test_resuming_in_the_middle_shows_the_rest(augment, start):
    batches = make_batches(images(augment=augment), spec(), CPU)
    whole = list(batches.epoch(3))
    rest = list(batches.epoch(3, start))
    assert len(rest) == 4 - start
    for (x, y, size), (x2, y2, size2) in zip(whole[start:], rest, strict=True):
        assert torch.equal(x, x2)
        assert torch.equal(y, y2)
        assert size == size2


@pytest.mark.parametrize("augment", [False, True])
def test_ranks_divide_each_batch(augment):
    whole = list(make_batches(images(augment=augment), spec(), CPU).epoch(1))
    shares = [list(make_batches(images(augment=augment), spec(), CPU, rank, 3).epoch(1)) for rank in range(3)]
    assert [len(share) for share in shares] == [len(whole)] * 3
    for number, (x, y, size) in enumerate(whole):
        parts = [share[number] for share in shares]
        assert [part.size for part in parts] == [size] * 3
        order = torch.cat([part.y for part in parts]).argsort()
        assert torch.equal(torch.cat([part.x for part in parts])[order], x[y.argsort()])


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 6))
@settings(deadline=None)
def test_every_rank_evaluates_as_often_and_together_they_see_all_once(number, ranks, size):
    """A sharded model is gathered at each batch, by all ranks or by none."""
    data = images()
    data = Images(data.train, (data.train[0][:1].expand(number, -1, -1, -1), torch.arange(number)), augment=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EVAL_IMAGES", size)
        shares = [list(make_batches(data, spec(), CPU, rank, ranks).evaluation("test")) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(y for share in shares for batch in share for y in batch.y.tolist()) == list(range(number))
    assert all(batch.size == len(batch.y) <= size for share in shares for batch in share)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(5, 9))
def test_columns_are_redistributed_over_another_number_of_ranks(before, after, columns):
    whole = torch.arange(2 * columns * 3).view(2, columns, 3)
    parts = [whole[:, rank::before] for rank in range(before)]
    for rank in range(after):
        assert torch.equal(redistribute(parts, rank, after), whole[:, rank::after])


def test_more_ranks_than_images_in_a_batch_are_refused():
    with pytest.raises(LabError, match="batch_size=8: must be at least the number of ranks, 9"):
        make_batches(images(), spec(), CPU, 0, 9)


def test_normalised_by_channel():
    data = images(300)
    x = torch.cat([batch.x for batch in make_batches(data, spec(), CPU).epoch(1)]).double()
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)
    test = torch.cat([batch.x for batch in make_batches(data, spec(), CPU).evaluation("test")])
    order = torch.cat([batch.y for batch in make_batches(data, spec(), CPU).epoch(1)])
    torch.testing.assert_close(test, x[order.argsort()][:7].float())


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.data())
def test_crop_and_flip_image_by_image(number, height, width, data):
    x = torch.arange(number * 2 * height * width, dtype=torch.float32).view(number, 2, height, width) + 1
    draw = st.lists(st.integers(0, 8), min_size=number, max_size=number)
    tops, lefts = data.draw(draw), data.draw(draw)
    flips = data.draw(st.lists(st.booleans(), min_size=number, max_size=number))
    got = crop_and_flip(x, torch.tensor([tops, lefts]).T, torch.tensor(flips))
    for i, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        for row in range(height):
            for column in range(width):
                source_row, source_column = row + top - 4, column + left - 4
                inside = 0 <= source_row < height and 0 <= source_column < width
                expected = x[i, :, source_row, source_column] if inside else torch.zeros(2)
                assert torch.equal(got[i, :, row, width - 1 - column if flip else column], expected)


def test_augmentation_reaches_every_crop_and_is_fair():
    data = images(4000, augment=True)
    data.train[0].zero_()
    data.train[0][:, :, 3, 2] = 255  # one bright pixel shows where each image went
    (batch,) = make_batches(data, spec(batch_size=4000), CPU).epoch(1)
    bright = (batch.x[:, 0] > 0).nonzero()
    places = set(map(tuple, bright[:, 1:].tolist()))
    # One pixel in each direction, as four are of 32; mirrored, columns 1 to 3 are 4 to 2.
    assert places == {(row, column) for row in range(2, 5) for column in range(1, 5)}
    counts = torch.bincount(bright[:, 1])[2:]
    assert counts.min() > 0.9 * 4000 / 3


def test_a_single_last_image_is_left_out_for_batch_normalisation():
    assert [len(y) for _, y, _ in make_batches(images(17), spec(), CPU).epoch(1)] == [8, 8]
    assert make_batches(images(19), spec(), CPU, 0, 2).steps == 2
    assert make_batches(images(20), spec(), CPU, 0, 2).steps == 3
    with pytest.raises(LabError, match="1 training images are too few"):
        make_batches(images(1), spec(), CPU)


def test_examples_limit_the_training_data():
    batches = make_batches(images(), spec(examples=10), CPU)
    assert sorted(chain.from_iterable(y.tolist() for _, y, _ in batches.epoch(1))) == list(range(10))


def test_text_is_read_in_columns_and_every_target_is_the_next_word():
    batches = make_batches(words(), text_spec(), CPU)
    rows = list(batches.epoch(1))
    assert len(rows) == batches.steps == 4
    x, y = torch.cat([b.x for b in rows]), torch.cat([b.y for b in rows])
    assert torch.equal(x + 1, y)
    assert x[0].tolist() == [0, 25, 50, 75]
    assert y.t().flatten().tolist() == [w for c in range(4) for w in range(25 * c + 1, 25 * c + 25)]
    assert [b.size for b in rows] == [28, 28, 28, 12]
    assert torch.equal(next(iter(batches.epoch(5, 2))).x, rows[2].x)


def test_text_ranks_divide_the_columns():
    whole = [b.x for b in make_batches(words(), text_spec(), CPU).epoch(1)]
    parts = [[b.x for b in make_batches(words(), text_spec(), CPU, rank, 2).epoch(1)] for rank in range(2)]
    for number, x in enumerate(whole):
        assert torch.equal(torch.stack([parts[0][number], parts[1][number]], 2).flatten(1), x)
    with pytest.raises(LabError, match="batch_size=4: must be at least the number of ranks, 5"):
        make_batches(words(), text_spec(), CPU, 0, 5)


def test_text_too_short_for_its_columns_is_refused():
    with pytest.raises(LabError, match="7 train words are too few for 4 columns"):
        make_batches(words(7), text_spec(), CPU)


def test_digits_statistics_agree_with_torch():
    x = load("digits").train[0].double()
    batch = next(iter(make_batches(load("digits"), spec(), CPU).evaluation("test")))
    raw = load("digits").test[0][:500].double()
    torch.testing.assert_close(batch.x.double(), (raw - x.mean()) / x.std(correction=0), atol=1e-5, rtol=1e-5)
