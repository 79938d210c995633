"""Options that are made from the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from dynabound.cli.options import Fields, expand, key_value, one_of
from dynabound.lab.spec import RunSpec


@dataclass
class Settings:
    name: str = field(metadata={"help": "A name.", "choices": ("one", "two")})
    size: int | None = field(default=None, metadata={"help": "A size.", "default": "all"})
    rate: float = field(default=0.5, metadata={"help": "A rate.", "min": 0.0})
    fast: bool = field(default=False, metadata={"help": "Be fast."})
    extra: dict[str, object] = field(default_factory=dict, metadata={"help": "More."})


def application(received, **options):
    app = typer.Typer()

    @app.command()
    @expand(settings=Fields(Settings, **options))
    def command(settings: dict, other: int = 1) -> None:
        received.update(settings=settings, other=other)

    return app


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ([], {}),
        (["one"], {"name": "one"}),
        (["two", "--size=3", "--rate=1", "--fast"], {"name": "two", "size": 3, "rate": 1.0, "fast": True}),
        (["--extra=a=1", "--extra=b=x"], {"extra": {"a": 1, "b": "x"}}),
    ],
)
def test_what_is_given_arrives_as_a_dict(arguments, settings):
    received = {}
    result = CliRunner().invoke(application(received), arguments)
    assert result.exit_code == 0, result.output
    assert received == {"settings": settings, "other": 1}


def test_types_limits_and_required_arguments_are_checked():
    for arguments in (["one", "--size=x"], ["one", "--rate=-1"], []):
        assert CliRunner().invoke(application({}, required=True), arguments).exit_code == 2


def test_help_shows_choices_and_defaults():
    shown = CliRunner().invoke(application({}), ["--help"]).output
    for text in ("A name: one, two.", "A size (default: all).", "A rate (default 0.5).", "Be fast.", "KEY=VALUE"):
        assert text in shown


def test_every_field_of_a_spec_is_an_option_of_train():
    names = [parameter.name for parameter in Fields(RunSpec).parameters()]
    assert names == [each.name for each in fields(RunSpec)]
    assert all(each.metadata["help"].endswith(".") for each in fields(RunSpec))


def test_choices_complete_in_the_shell():
    app = typer.Typer()

    @app.command()
    def command(engine: str = typer.Option("local", **one_of(("local", "ray"), "Engine."))) -> None: ...

    @app.command()
    def other() -> None: ...

    environment = {"_APP_COMPLETE": "complete_bash", "COMP_WORDS": "app command --engine l", "COMP_CWORD": "3"}
    result = CliRunner().invoke(app, env=environment, prog_name="app")
    assert result.stdout.split() == ["local"]
    assert get_command(app).commands["command"].params[0].metavar == "local|ray"


def test_key_value_is_read_as_python():
    assert key_value("betas=0.8,0.9") == ("betas", (0.8, 0.9))
    assert key_value("nesterov=false") == ("nesterov", False)
    assert key_value("x=" + "(" * 10_000) == ("x", "(" * 10_000)
    with pytest.raises(typer.BadParameter, match="must be key=value"):
        key_value("=3")
