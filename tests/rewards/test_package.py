"""The package as users meet it: what it exports, and that its documentation runs; `test_layers` says what it loads."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from rerank_env import rewards
from rerank_env.rewards import errors
from rerank_env.rewards.registry import CONDITIONS, LEAVES, PRESETS

MODULES = [module.name for module in pkgutil.iter_modules(rewards.__path__)]


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


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
