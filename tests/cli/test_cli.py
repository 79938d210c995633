"""The command line as a whole: what it loads, what its help shows, and ``bench``."""

import json
import subprocess
import sys

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import dynabound
from dynabound import AdaBound
from dynabound._extras import pip_command
from dynabound.cli import COMMANDS, app, bench
from helpers.golden import has_keys, load


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def threads():
    """Leave torch's number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(name):
    group = get_command(app)
    with group.make_context("dynabound", [], resilient_parsing=True) as context:
        return group.resolve_command(context, [name])[1]


def test_version_and_help():
    assert run("--version").output.strip() == dynabound.__version__
    shown = run("--help").output
    assert all(name in shown for name in COMMANDS)
    assert "--install-completion" in shown
    assert "fused Adam" in run("bench", "--help").output


@pytest.mark.processes
@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_neither_torch_nor_the_lab_nor_ray(option):
    code = f"""import sys; sys.argv = ['dynabound', '{option}']
from dynabound.__main__ import main
try: main()
except SystemExit: print(*sys.modules)"""
    modules = python(code).stdout.splitlines()[-1].split()
    assert "dynabound.cli" in modules
    assert not {"torch", "numpy", "ray", "dynabound.optim", "dynabound.lab", "dynabound.theory"} & set(modules)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_the_first_line_of_their_help(name):
    command = loaded(name)
    assert command.name == name
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


@pytest.mark.parametrize("name", ["train", "reproduce", "tune", "report", "theory", "bounds", "bench"])
def test_every_command_has_examples(name):
    assert loaded(name).epilog.startswith("Examples:\n\ndynabound ")


@pytest.mark.parametrize("width", ["60", "80"])
@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["runs", "show"], ["data", "fetch"]])
def test_help_shows_no_type_for_flags_and_breaks_no_choice(words, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    shown = run(*words, "--help").stdout
    assert "<bool>" not in shown
    for choices in ("demo|laptop|paper", "float32|bf16", "cpu|cuda|mps", "local|ray", "sqrt|constant"):
        first = choices.partition("|")[0] + "|"
        assert shown.count(first) == shown.count(choices)


def test_an_unknown_command_names_the_nearest():
    result = run("trian")
    assert result.exit_code == 2
    assert "'train'" in result.output


@pytest.mark.slow
def test_bench(tmp_path, threads, monkeypatch):
    result = run("bench", "small", "--repetitions", "1", "--threads", "1", "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert has_keys(report, load("json_keys.json")["bench --json"])
    assert json.loads((tmp_path / "bench.json").read_text()) == report
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    (work,) = report["works"]
    times = work["milliseconds"]
    assert (work["tensors"], work["elements"]) == (500, 500 * 64 * 64)
    assert work["against_fused_adam"] == times["dynabound AdaBound"] / times["torch Adam fused"]
    assert set(work["times_faster_than"]) == {"adabound", "torch_optimizer", "pytorch_optimizer"}

    monkeypatch.setattr(bench, "measure", lambda *options: work)
    monkeypatch.setattr(bench, "import_milliseconds", lambda repetitions: 12.3)
    shown = run("bench", "small").stdout
    assert "Milliseconds per step" in shown
    assert "AdaBound / fused Adam" in shown
    assert f"{times['torch Adam fused']:.2f}" in shown
    assert "import dynabound takes 12" in shown


def test_bench_refuses_unknown_work():
    result = run("bench", "huge")
    assert result.exit_code == 2
    assert "resnet34, small, large" in result.output.replace("\n", " ")


def test_bench_needs_the_gpu_that_it_is_to_measure():
    for device, message in (("cuda", "finds no such device"), ("tpu", "must be cpu, cuda or xpu")):
        result = run("bench", "--device", device)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_bench_on_a_gpu(monkeypatch):
    """With the CPU in place of a GPU: the foreach backend in place of the Triton kernel."""
    shapes = [(3, 4), (5,)]
    monkeypatch.setitem(bench.WORKS, "small", lambda: shapes)
    monkeypatch.setattr(bench, "_check_device", lambda device: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A100")
    monkeypatch.setattr(bench, "import_milliseconds", lambda repetitions: 12.3)
    make = torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, device: make(shape))
    monkeypatch.setattr(bench, "AdaBound", lambda params, capturable=False, **options: AdaBound(params, **options))
    result = run("bench", "small", "--device", "cuda", "--repetitions", "2")
    assert result.exit_code == 0, result.output
    for word in ("A100", "AdaBound foreach", "AdaBound / fused Adam", "Please send this table to https://"):
        assert word in result.output


@pytest.mark.processes
@pytest.mark.parametrize("module", ["typer", "rich"])
@pytest.mark.parametrize(("word", "extra"), [("runs", "lab"), ("--version", "theory"), ("theory", "theory")])
def test_a_missing_extra_names_the_pip_command(module, word, extra):
    code = f"import sys; sys.modules['{module}'] = None; sys.argv[1:] = ['{word}']; "
    result = python(code + "from dynabound.__main__ import main; main()")
    assert result.returncode == 1
    assert pip_command(extra) in result.stderr
    assert len(result.stderr.splitlines()) == 1
