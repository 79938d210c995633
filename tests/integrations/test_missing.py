import subprocess
import sys

import pytest


@pytest.mark.parametrize("framework", ["lightning", "transformers", "timm"])
def test_a_missing_framework_is_named_with_its_command(framework):
    script = f"""
import sys
sys.modules[{framework!r}] = None  # so that importing it fails
import dynabound.integrations
try:
    import dynabound.integrations.{framework}
except ModuleNotFoundError as error:
    print(error)
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert "is not installed: pip install" in output
    assert framework in output.split("pip install")[1]


def test_the_package_itself_imports_no_framework():
    script = "import sys, dynabound.integrations; print({'lightning', 'transformers', 'timm'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"
