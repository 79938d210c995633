"""Options of several commands, options made from the fields of a dataclass, and checks of their values."""

from __future__ import annotations

import ast
import inspect
import math
import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dynabound.cli.output import CommandError

Command = TypeVar("Command", bound=Callable[..., None])


def _completer(choices: Iterable[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete


_BESIDE = 16  # longer lists would be broken inside a word on a narrow terminal


def one_of(choices: Iterable[str], help: str, argument: bool = False) -> dict[str, Any]:
    """Show the choices in the help and complete them in the shell; checking them is left to the command.

    Few choices are shown beside the option, many in its help text.
    """
    choices = tuple(choices)
    shown = "|".join(choices)
    about: dict[str, Any] = {"help": help, "autocompletion": _completer(choices)}
    if argument or len(shown) > _BESIDE:
        return about | {"help": f"{help.removesuffix('.')}: {', '.join(choices)}."}
    return about | {"metavar": shown}


def examples(*lines: str) -> Callable[[Command], Command]:
    """Add examples to a command's help."""

    def decorate(command: Command) -> Command:
        command.epilog = "\n\n".join(("Examples:", *lines))  # type: ignore[attr-defined]
        return command

    return decorate


DEVICES = ("cpu", "cuda", "mps")
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the runs.")]
_DATA_DIR = "Folder to search for data first."
DataDir = Annotated[Path | None, typer.Option("--data-dir", envvar="DYNABOUND_DATA", help=_DATA_DIR)]
Device = Annotated[str, typer.Option("--device", **one_of(DEVICES, "Device to train on."))]


def key_value(text: str) -> tuple[str, Any]:
    """``key=value``; the value is a Python literal, or else a string.

    >>> key_value("betas=0.9,0.99"), key_value("nesterov=true"), key_value("bounds=linear")
    (('betas', (0.9, 0.99)), ('nesterov', True), ('bounds', 'linear'))
    """
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r}: must be key=value, such as final_lr=0.5 or betas=0.9,0.99")
    try:
        return key, ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return key, value


_KINDS: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}


@dataclass(frozen=True)
class Fields:
    """An option for each field of a dataclass, with the help, choices and default of its metadata.

    A field without a default becomes an argument. Its hint gives the type: str, int, float or bool; any other
    is a mapping, whose option is key=value and may be repeated.
    """

    cls: Any
    without: Container[str] = ()
    required: bool = False
    """Whether the arguments must be given."""

    def _fields(self) -> list[Field[Any]]:
        return [each for each in fields(self.cls) if each.name not in self.without]

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters of a command that takes these options; one that is not given is None."""
        return list(map(self._parameter, self._fields()))

    def _parameter(self, spec: Field[Any]) -> inspect.Parameter:
        kind = _KINDS.get(str(spec.type).removesuffix(" | None"), list[str])
        argument = spec.default is MISSING and spec.default_factory is MISSING
        about = {key: spec.metadata[key] for key in ("help", "min", "max", "envvar") if key in spec.metadata}
        if spec.metadata.get("choices"):
            about |= one_of(spec.metadata["choices"], about["help"], argument=argument)
        about |= {"help": _with_default(about["help"], spec), "show_default": False}
        if argument and self.required:
            return _parameter(spec.name, inspect.Parameter.empty, Annotated[kind, typer.Argument(**about)])
        if argument:
            return _parameter(spec.name, None, Annotated[kind | None, typer.Argument(**about)])
        if kind == list[str]:
            about["metavar"] = "KEY=VALUE"
        return _parameter(spec.name, None, Annotated[kind | None, typer.Option(_flag(spec.name), **about)])

    def given(self, values: dict[str, Any]) -> dict[str, Any]:
        """Remove these options from a command's ``values``; return those that were given."""
        taken = {each.name: values.pop(each.name) for each in self._fields()}
        taken = {name: value for name, value in taken.items() if value is not None and value != []}
        return {
            name: dict(map(key_value, value)) if isinstance(value, list) else value for name, value in taken.items()
        }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_default(text: str, spec: Field[Any]) -> str:
    described = spec.metadata.get("default")
    plain = isinstance(spec.default, (str, int, float)) and not isinstance(spec.default, bool)
    if not (described or plain):
        return text
    return f"{text.removesuffix('.')} (default{f': {described}' if described else f' {spec.default}'})."


def expand(**groups: Fields) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``groups`` to a command, which gets for each keyword a dict of the given options."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += groups[name].parameters() if name in groups else [own]

        def call(**values: Any) -> None:
            values |= {name: group.given(values) for name, group in groups.items()}
            command(**values)

        call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def _option(value: Any, help: str, **metadata: Any) -> Any:
    return field(default=value, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class SaveOptions:
    """When a run saves checkpoints."""

    checkpoint_steps: int | None = _option(None, "Save every N steps.", min=1)
    checkpoint_minutes: float = _option(2.0, "Save every N minutes.", min=0.0)


@dataclass(frozen=True)
class EngineOptions:
    """Where a study's runs are trained."""

    engine: str = _option("local", "Where to train: on this machine, or on a Ray cluster.", choices=("local", "ray"))
    jobs: int | None = _option(None, "Runs at the same time.", min=1, max=1024, default="one per core, or per GPU")
    address: str | None = _option(
        None, "Ray cluster: auto, host:port or ray://host:port.", default="start Ray on this machine"
    )
    cpus_per_run: int | None = _option(
        None, "CPU cores, and threads, of a run on Ray.", min=1, max=4096, default="1 per rank"
    )
    gpus_per_run: float | None = _option(None, "GPUs of a run on Ray.", min=0.0, default="1 per rank on cuda")
    ranks_per_run: int | None = _option(None, "Processes that train one run on Ray.", min=1, max=1024, default="1")
    data_dir: Path | None = field(default=None, metadata={"help": _DATA_DIR, "envvar": "DYNABOUND_DATA"})
    device: str = _option("cpu", "Device to train on.", choices=DEVICES)


def _exists(path: Path) -> bool:
    """Whether ``path`` exists; OSError if that cannot be known, which ``Path.exists`` hides from Python 3.14 on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_folder(folder: Path, option: str = "--out") -> None:
    """Raise CommandError, before anything is run, unless files can be written into ``folder``, which need not exist."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if _exists(path))
    except OSError as error:
        raise CommandError(f"{folder}: cannot be written ({error.strerror}); give another {option}") from None
    if not nearest.is_dir():
        raise CommandError(f"{folder}: cannot be written ({nearest} is not a folder); give another {option}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CommandError(f"{folder}: cannot be written (no permission in {nearest}); give another {option}")


def check_finite(option: str, value: float | None) -> None:
    """Raise CommandError if a number is infinite or NaN."""
    if value is not None and not math.isfinite(value):
        raise CommandError(f"{option} {value}: must be a finite number")


def check_unused(option: str, others: Mapping[str, object]) -> None:
    """Raise CommandError if one of ``others`` was given, all of which ``option`` would ignore."""
    for other, value in others.items():
        if value:
            raise CommandError(f"{other}: has no effect with {option}; leave one of them out")


def check_readable(folder: Path | None, option: str) -> None:
    """Raise CommandError if the folder was given and cannot be accessed; it need not exist."""
    try:
        if folder is not None:
            _exists(folder)
    except OSError as error:
        raise CommandError(f"{option} {folder}: cannot be read ({error.strerror}); give another one") from None
