import functools
import math

import pytest
import torch

import dynabound
from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from helpers.small_task import OPTIONS, weights

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from dynabound.integrations.transformers import LensCallback, suggest  # noqa: E402

CONFIG = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)


def make_trainer(folder, callback=None, tokens=None, **arguments):
    """A GPT-2 with dropout, gradient accumulation, clipping and a schedule; a checkpoint every four steps."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG))
    if tokens is None:
        tokens = torch.randint(32, (64, 16), generator=torch.Generator().manual_seed(1))
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / math.sqrt(step + 1))
    arguments = transformers.TrainingArguments(
        folder, save_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no", **arguments,
    )  # fmt: skip
    return transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[callback] if callback else [],
        optimizers=(optimizer, schedule),
    )


def train(steps, folder="out", callback=None, **options):
    callback = callback or LensCallback(every=2)
    trainer = make_trainer(folder, callback, max_steps=steps)
    trainer.train(**options)
    return trainer.model, callback


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit():
    expected, whole = train(8, "whole")
    _, half = train(4)
    resumed, rest = train(8, resume_from_checkpoint="out/checkpoint-4")
    assert weights(resumed) == weights(expected)
    assert rest.lens.records() == whole.lens.records()
    assert whole.lens.steps == [1, 3, 5, 7, 8]
    assert half.lens.steps == [1, 3, 4]
    assert whole.lens.optimizer_name == "AdaBound"
    assert "transformer.h.0.attn.c_attn.weight" in whole.lens.shapes


def test_on_look_and_a_callback_that_was_not_used():
    seen = []
    make_lens = functools.partial(LearningRateLens, quantiles=(0.9,))
    _, callback = train(2, callback=LensCallback(1, lambda step, record: seen.append((step, record)), make_lens))
    assert callback.lens.columns[:4] == ("min", "median", "q90", "max")
    assert [step for step, _ in seen] == [1, 2]
    name = "transformer.wte.weight"
    assert [record[name]["max"] for _, record in seen] == callback.lens.series(name, "max").tolist()
    with pytest.raises(
        RuntimeError, match=r"training has not begun: pass the callback to a Trainer, and call train\(\)"
    ):
        LensCallback().lens  # noqa: B018


def alternating():
    """Sequences that can be learned: each token follows from the last."""
    return (torch.arange(64)[:, None] + 5 * torch.arange(16)) % 32


def test_suggest_is_that_of_torch_and_leaves_the_model_alone():
    trainer = make_trainer("out", tokens=alternating(), max_steps=200, max_grad_norm=0.5)
    before = weights(trainer.model)
    torch.manual_seed(0)  # as suggest does, so that the batches are the same
    batches = list(trainer.get_train_dataloader())
    found = suggest(trainer)
    assert weights(trainer.model) == before
    wanted = dynabound.suggest(trainer.model, lambda model, batch: model(**batch).loss, batches, 200, clip=0.5)
    assert found == wanted


def test_the_steps_are_those_of_the_arguments():
    """64 examples in batches of 4, two to a step: eight steps in an epoch."""
    trainer = make_trainer("out", tokens=alternating(), num_train_epochs=25)
    assert suggest(trainer, budget=96) == suggest(trainer, 200, budget=96)


def test_training_after_suggest_is_the_same():
    asked, plain = (make_trainer(folder, max_steps=6, tokens=alternating()) for folder in ("asked", "plain"))
    suggest(asked, 96)
    for trainer in (asked, plain):
        torch.manual_seed(0)
        trainer.train()
    assert weights(asked.model) == weights(plain.model)
