"""Optuna and Ray Tune: searches that are interrupted and resumed."""

import os

import pytest
import torch.nn.functional as F

from dynabound import AdaBound
from helpers.ray_trainable import trainable
from helpers.small_task import make_loader, make_net, train


def final_loss(lr, final_lr):
    net = make_net()
    train(net, AdaBound(net.parameters(), lr=lr, final_lr=final_lr), 2)
    batch, target = next(iter(make_loader()))
    return F.cross_entropy(net(batch), target).item()


def test_an_optuna_study_is_resumed():
    optuna = pytest.importorskip("optuna")

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        return final_loss(lr, trial.suggest_float("final_lr", 1e-2, 1.0, log=True))

    for trials in (3, 6):
        study = optuna.create_study(
            storage="sqlite:///study.db",
            study_name="adabound",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=trials),
        )
        study.optimize(objective, n_trials=3)
        assert len(study.trials) == trials
    for trial in study.trials:
        assert trial.value == final_loss(**trial.params), "a trial is reproducible from its parameters, bit for bit"


def test_a_ray_tune_trial_is_resumed_bit_for_bit(tmp_path, local_ray):
    from ray import tune

    mark = str(tmp_path / "failed")
    tuner = tune.Tuner(
        trainable,
        param_space={"fails": tune.grid_search(["", mark])},
        run_config=tune.RunConfig(name="adabound", storage_path=str(tmp_path / "ray"), verbose=0),
    )
    assert len(tuner.fit().errors) == 1
    restored = tune.Tuner.restore(str(tmp_path / "ray" / "adabound"), trainable, resume_errored=True)
    results = restored.fit()
    assert not results.errors
    whole, resumed = sorted(results, key=lambda result: result.config["fails"])
    assert resumed.metrics["epoch"] == whole.metrics["epoch"] == 4
    assert resumed.metrics["total"] == whole.metrics["total"]
    assert os.path.exists(mark)
