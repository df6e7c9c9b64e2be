"""The package as users meet it: what it exports, what it loads, and that its documentation runs."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from rerank_env import rewards
from rerank_env.rewards import errors
from rerank_env.rewards.registry import CONDITIONS, LEAVES, PRESETS

HEAVY = ["torch", "transformers", "trl", "ray", "scipy.stats", "pandas", "hypothesis", "typer"]
MODULES = [module.name for module in pkgutil.iter_modules(rewards.__path__)]


def run(code, cwd=None):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=cwd)


def test_importing_rewards_loads_nothing_heavy():
    done = run(f"import sys, rerank_env.rewards; print([name for name in {HEAVY} if name in sys.modules])")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_bare_import_is_refused_with_the_right_spelling():
    folder = Path(rewards.__file__).parent.parent  # where a folder called rewards lies
    done = run("import rewards", cwd=folder)
    assert done.returncode == 1
    assert "ImportError: write `from rerank_env import rewards`" in done.stderr


def test_everything_exported_exists_and_is_sorted():
    assert rewards.__all__ == sorted(rewards.__all__)
    assert all(hasattr(rewards, name) for name in rewards.__all__)
    assert dir(rewards) == rewards.__all__
    assert not hasattr(rewards, "unheard_of")


def test_every_error_class_is_exported():
    own = {kind.__name__ for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert own <= set(rewards.__all__)


def test_everything_that_can_be_named_is_exported():
    assert {named.__name__ for named in (*LEAVES, *CONDITIONS, *PRESETS)} <= set(rewards.__all__)


def test_no_function_hides_a_module():
    for name in MODULES:
        module = importlib.import_module(f"rerank_env.rewards.{name}")
        assert getattr(rewards, name) is module


def test_testing_is_loaded_on_first_use():
    done = run(
        "import sys; from rerank_env import rewards as R; assert 'hypothesis' not in sys.modules; "
        "R.testing.slates; assert 'hypothesis' in sys.modules"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_testing_without_hypothesis_says_what_to_install():
    done = run(
        "import sys; sys.modules['hypothesis'] = None\n"
        "from rerank_env import rewards\n"
        "try: rewards.testing\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    assert done.stdout.startswith("MissingExtraError rerank_env.rewards.testing needs hypothesis; run `pip install")


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in MODULES)])
def test_the_examples_in_the_documentation_run(module):
    assert doctest.testmod(importlib.import_module(f"rerank_env.rewards{module}")).failed == 0
