import functools
import math

import pytest
import torch

from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from helpers.small_task import OPTIONS, weights

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from dynabound.integrations.transformers import LensCallback  # noqa: E402

CONFIG = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, bos_token_id=0, eos_token_id=0)


def train(steps, folder="out", callback=None, **options):
    """Eight steps of a GPT-2 with dropout, gradient accumulation, clipping and a schedule; a checkpoint every four."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG))
    tokens = torch.randint(32, (64, 16), generator=torch.Generator().manual_seed(1))
    optimizer = AdaBound(model.parameters(), **OPTIONS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / math.sqrt(step + 1))
    arguments = transformers.TrainingArguments(
        folder, max_steps=steps, save_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callback = callback or LensCallback(every=2)
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[callback],
        optimizers=(optimizer, schedule),
    )
    trainer.train(**options)
    return model, callback


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


def test_training_is_the_same_without_the_callback():
    watched, _ = train(4, "watched")
    alone, _ = train(4, "alone", callback=transformers.TrainerCallback())
    assert weights(watched) == weights(alone)


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
