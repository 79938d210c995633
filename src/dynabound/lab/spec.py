"""RunSpec: one run as a value that can be frozen, hashed, stored and sent."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from reprlib import repr as short
from typing import Any, TypeAlias

from dynabound._checks import did_you_mean
from dynabound.lab.errors import LabError
from dynabound.lab.tasks import optimizers
from dynabound.lab.tasks.catalog import TASKS
from dynabound.lab.tasks.models import MODELS

OptionPairs: TypeAlias = "tuple[tuple[str, Any], ...]"
SCALES = ("demo", "laptop", "paper")
PRECISIONS = ("float32", "bf16")


class SpecError(LabError, ValueError):
    """A field of a RunSpec is invalid, or two fields contradict each other."""


_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "width": (lambda x: 0 < x <= 16, "in (0, 16]"),
    "dropout": (lambda x: 0 <= x < 1, "in [0, 1)"),
    "clip": (lambda x: x >= 0, ">= 0; 0 means no clipping"),
    "lr": (lambda x: x >= 0, ">= 0"),
    "weight_decay": (lambda x: x >= 0, ">= 0"),
}
_OWN = sorted({name for own in MODELS.values() for name in own})


DEFAULT: Any = None
"""Stands for the default of the task, the model or the optimizer."""


def _field(value: Any, help: str, choices: Iterable[str] = (), default: str = "") -> Any:
    """A field from which the command line makes an option; ``default`` is shown in its help."""
    return field(default=value, metadata={"help": help, "choices": tuple(choices), "default": default})


def _own(name: str, help: str) -> Any:
    """A field that only some models have."""
    defaults = {model: own[name] for model, own in MODELS.items() if name in own}
    if len(set(defaults.values())) == 1:
        return _field(None, help, default=str(*set(defaults.values())))
    return _field(None, help, default=", ".join(f"{value} for {model}" for model, value in defaults.items()))


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines a run's numbers. A field that is None gets its default, if the model has that field.

    Two specs of the same run are equal and have the same :attr:`name`, however they were written.

    >>> spec = RunSpec("mnist", opt={"final_lr": 0.5})
    >>> spec.model, spec.hidden, spec.optimizer, spec.lr
    ('perceptron', 100, 'adabound', 0.001)
    >>> RunSpec.from_dict(spec.to_dict()) == spec
    True
    >>> RunSpec("mnist", model="lstm")
    Traceback (most recent call last):
    ...
    dynabound.lab.spec.SpecError: model='lstm': mnist takes perceptron, resnet34, densenet121, resnet10
    """

    task: str = _field(MISSING, "Data set to train on.", TASKS)
    model: str = _field(DEFAULT, "Network.", MODELS, "the task's")
    width: float | None = _own("width", "Factor on the number of channels; 1 is the paper's.")
    hidden: int | None = _own("hidden", "Units of the hidden layer, or of each LSTM layer.")
    layers: int | None = _own("layers", "Number of LSTM layers.")
    dropout: float | None = _own("dropout", "Dropout probability of the LSTM.")
    bptt: int | None = _own("bptt", "Words per step of truncated backpropagation through time.")
    clip: float | None = _own("clip", "Largest gradient norm; 0: no clipping.")
    optimizer: str = _field("adabound", "Optimizer.", (*optimizers.OPTIMIZERS, "module:Class"))
    lr: float = _field(DEFAULT, "Learning rate.", default="the optimizer's")
    opt: Mapping[str, Any] | OptionPairs = _field((), "Optimizer argument, such as final_lr=0.5; repeatable.")  # noqa: RUF009
    batch_size: int = _field(DEFAULT, "Images, or parallel streams of text, per step.", default="the task's")
    epochs: int = _field(10, "Passes over the training data.")
    decay_after: int | None = _field(None, "Divide the learning rate by 10 after this epoch.", default="never")
    weight_decay: float = _field(DEFAULT, "Weight decay, as the optimizer defines it.", default="the task's")
    seed: int = _field(0, "Random seed.")
    examples: int | None = _field(None, "Use only the first N training examples.", default="all")
    precision: str = _field("float32", "Number format; bf16 computes under autocast.", PRECISIONS)
    rates: bool = _field(False, "Store every layer's learning rates after each epoch.")
    scale: str = _field(DEFAULT, "Scale of the study that the run belongs to.", SCALES, "the task's")

    def __post_init__(self) -> None:
        task = _choice("task", self.task, TASKS)
        text = TASKS[task].text
        models = [model for model in MODELS if (model == "lstm") == text]
        self._default("model", TASKS[task].model)
        if self.model not in models:
            raise SpecError(f"model={self.model!r}: {task} takes {', '.join(models)}")
        for name in _OWN:
            if name in MODELS[self.model]:
                self._default(name, MODELS[self.model][name])
            elif getattr(self, name) is not None:
                raise SpecError(f"{name}={getattr(self, name)!r}: {self.model} has no {name}; leave it out")
        for name in ("batch_size", "scale"):
            self._default(name, getattr(TASKS[task], name))
        if not isinstance(self.optimizer, str):
            raise SpecError(f"optimizer={self.optimizer!r}: must be a name")
        self._default("lr", optimizers.default_lr(self.optimizer, text))
        self._default("weight_decay", optimizers.default_weight_decay(self.optimizer, TASKS[task].weight_decay))
        self._check_numbers()
        _choice("scale", self.scale, SCALES)
        _choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.rates, bool):
            raise SpecError(f"rates={self.rates!r}: must be True or False")
        object.__setattr__(self, "opt", _pairs(self.optimizer, self.opt))
        optimizers.check(self.optimizer, self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.name == other.name  # in Python, True is equal to 1

    def _default(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name in ("hidden", "layers", "bptt", "batch_size", "epochs", "decay_after", "examples"):
            _integer(name, getattr(self, name), 1)
        _integer("seed", self.seed, 0)
        for name, (legal, allowed) in _NUMBERS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not (is_number(value) and legal(value)):
                raise SpecError(f"{name}={short(value)}: must be a number {allowed}")
            object.__setattr__(self, name, float(value) + 0.0)  # 1 and 1.0 are one run, and so are 0 and -0
        if self.decay_after is not None and self.decay_after >= self.epochs:
            raise SpecError(
                f"decay_after={self.decay_after}: must be below epochs={self.epochs}; "
                "leave it out if the rate should not decay"
            )

    @property
    def text(self) -> bool:
        """Whether this is a language model and not a classifier."""
        return TASKS[self.task].text

    @property
    def metric(self) -> str:
        """The metric of the task."""
        return "perplexity" if self.text else "accuracy"

    @property
    def options(self) -> dict[str, Any]:
        """The optimizer's other arguments, as a dict."""
        return dict(self.opt)

    @functools.cached_property
    def name(self) -> str:
        """The run's name: a hash of the fields that are not None, so that new ones do not rename old runs."""
        set_fields = {key: value for key, value in self.to_dict().items() if value is not None}
        return hashlib.sha256(_dumps(set_fields).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | {"opt": self.options}

    def to_json(self) -> str:
        """The fields as one line of JSON, always in the same order."""
        return _dumps(self.to_dict())

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> RunSpec:
        """The spec of ``fields``; an unknown one is an error that names it."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                hint = did_you_mean(key, known)
                raise SpecError(f"{key}: is not a field of a spec; the fields are {', '.join(known)}{hint}")
        if "task" not in fields:
            raise SpecError(f"task: is missing; must be {', '.join(TASKS)}")
        return cls(**fields)

    @classmethod
    def stored(cls, fields: Mapping[str, Any], name: str) -> RunSpec:
        """The spec that was stored as run ``name``. Its hash shows that it was checked when it was made."""
        spec = object.__new__(cls)
        for each in dataclasses.fields(cls):
            object.__setattr__(spec, each.name, fields.get(each.name))
        options = sorted((fields.get("opt") or {}).items())
        object.__setattr__(spec, "opt", tuple((key, _tuple(value)) for key, value in options))
        if spec.name != name:
            raise SpecError(f"is the spec of run {spec.name}, not of {name}")
        return spec


def _is_option(value: Any) -> bool:
    """Whether an option can be stored and compared: a finite number, a string, a boolean, None or a tuple of them."""
    if isinstance(value, tuple):
        return all(map(_is_option, value))
    return value is None or isinstance(value, (bool, str)) or is_number(value)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite float, or an integer that fits into 64 bits."""
    return math.isfinite(value) if isinstance(value, float) else type(value) is int and abs(value) < 2**63


def _dumps(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, allow_nan=False)


def _choice(name: str, value: Any, allowed: Any) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(f"{name}={short(value)}: must be one of {', '.join(allowed)}")
    return value


def _integer(name: str, value: Any, least: int) -> None:
    if value is not None and not (type(value) is int and least <= value < 2**63):
        raise SpecError(f"{name}={short(value)}: must be an integer >= {least} that fits into 64 bits")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _pairs(optimizer: str, opt: Any) -> OptionPairs:
    """Options in one canonical form: sorted pairs, lists as tuples."""
    items = opt.items() if isinstance(opt, Mapping) else opt
    try:
        pairs = {key: _tuple(value) for key, value in items}
    except (TypeError, ValueError):
        pairs = {"": opt}
    if not all(isinstance(key, str) and key and _is_option(value) for key, value in pairs.items()):
        raise SpecError(f"opt={short(opt)}: must map names to finite numbers, strings, booleans or lists of them")
    pairs = optimizers.canonical(optimizer, pairs)
    for reserved in {"lr", "weight_decay", "params"} & pairs.keys():
        raise SpecError(f"opt {reserved}: is a field of its own; give it as {reserved}, not in opt")
    return tuple(sorted(pairs.items()))


def describe(spec: RunSpec) -> str:
    """A run in a few words.

    >>> describe(RunSpec("digits", optimizer="adam", seed=2))
    'digits perceptron adam lr 0.001 seed 2'
    """
    options = "".join(f" {key} {_brief(value)}" for key, value in spec.options.items())
    return f"{workload_title(spec)} {spec.optimizer} lr {spec.lr:g}{options} seed {spec.seed}"


def workload_title(spec: RunSpec) -> str:
    """The data set and the model.

    >>> workload_title(RunSpec("ptb", layers=2))
    'ptb lstm-2'
    """
    return f"{spec.task} {spec.model}" + (f"-{spec.layers}" if spec.layers else "")


@functools.cache
def workload_key(spec: RunSpec) -> RunSpec:
    """Equal for two runs whose epochs take equally long: everything except method, seed and number of epochs.

    >>> workload_key(RunSpec("mnist", optimizer="sgdm", seed=1)) == workload_key(RunSpec("mnist", epochs=3))
    True
    """
    plain = dict(optimizer="adam", lr=DEFAULT, opt={}, seed=0, epochs=1, decay_after=None, rates=False, scale="paper")
    return dataclasses.replace(spec, **plain)


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_brief, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
