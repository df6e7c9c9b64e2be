"""Names of a package that load on first use, so that importing the package stays cheap and needs no extra.

May import the standard library only, besides the error it raises. In a package's `__init__.py`:

    __getattr__, __dir__ = lazy.names(globals(), {"ListwisePolicy": "listwise"}, extra="agents")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names(
    package: dict[str, Any], homes: Mapping[str, str], *, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of the package whose globals are `package`.

    `homes` gives for each name the submodule, relative to the package, that holds it; a name that is its own home
    stands for the submodule. Where a library that a home needs is not installed, loading the name raises
    `MissingExtraError` with the command that installs `extra`, or without one the error of the import.
    """
    root = package["__name__"].partition(".")[0]

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package['__name__']}.{homes[name]}")
        except ModuleNotFoundError as error:
            if extra is None or error.name is None or error.name.partition(".")[0] == root:
                raise
            from rerank_env.rewards.errors import MissingExtraError  # the rewards may be what is being loaded

            raise MissingExtraError(
                f'{name} needs {error.name}, which is not installed; run: pip install "rerank-env[{extra}]"'
            ) from error
        package[name] = module if homes[name] == name else getattr(module, name)
        return package[name]

    def listed() -> list[str]:
        return sorted({*package, *homes})

    return load, listed
