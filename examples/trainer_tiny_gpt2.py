"""AdaBound under the Trainer of Hugging Face transformers: a tiny GPT-2 of characters, in a minute on one CPU core.

    pip install transformers accelerate
    python examples/trainer_tiny_gpt2.py --out gpt2-run

trains on the help texts of Python itself (nothing is downloaded), stops in the middle, resumes from the Trainer's
checkpoint, and prints the loss and the table of the lens. Language models are not AdaBound's strength: see "When not to
use AdaBound" in docs/optimizers.md.
"""

import argparse
import math
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from dynabound import AdaBoundW
from dynabound.integrations.transformers import LensCallback

LENGTH = 64


def make_examples():
    """Windows of characters, in order; the last tenth is for evaluation."""
    text = "".join(topics[name] for name in sorted(topics))[:200_000]
    vocabulary = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([vocabulary[character] for character in text])
    examples = [{"input_ids": row, "labels": row} for row in tokens.split(LENGTH) if len(row) == LENGTH]
    split = len(examples) * 9 // 10
    return examples[:split], examples[split:], len(vocabulary)


def train(steps, total, folder, checkpoint=None):
    """Train until ``steps`` of ``total`` steps, from a checkpoint if there is one; return the Trainer and the lens."""
    set_seed(0)
    training, evaluation, size = make_examples()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    optimizer = AdaBoundW(model.parameters(), lr=3e-3, final_lr=0.3, gamma=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / total))
    arguments = TrainingArguments(
        str(folder), max_steps=steps, save_steps=total // 2, per_device_train_batch_size=16, report_to=[], use_cpu=True,
        logging_steps=50, disable_tqdm=True,
    )  # fmt: skip
    callback = LensCallback(every=25)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=training,
        eval_dataset=evaluation,
        callbacks=[callback],
        optimizers=(optimizer, schedule),
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, callback.lens


def main():
    """Train half of the steps, resume, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpt2-run"), help="the folder for checkpoints and figures")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    half = arguments.steps // 2
    train(half, arguments.steps, arguments.out)
    trainer, lens = train(arguments.steps, arguments.steps, arguments.out, str(arguments.out / f"checkpoint-{half}"))
    loss = trainer.evaluate()["eval_loss"]
    print(f"evaluation loss {loss:.3f} per character, perplexity {math.exp(loss):.2f}; snapshots at {lens.steps}")
    lens.table()
    lens.funnel().savefig(arguments.out / "funnel.png", dpi=110)


if __name__ == "__main__":
    main()
