"""Optional dependencies: one place that imports them and names the extra that installs them.

Input: the name of a module and of the extra that installs it. Output: the module, or an ImportError whose message names
the pip command to run.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency.

    Args:
        module: Dotted name of the module, such as "pyarrow.parquet".
        extra: The extra of elmokit that installs it, such as "parquet".

    Returns:
        The module.

    Raises:
        ImportError: If the module is not installed. The message names the pip command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(f'{name} is not installed: pip install "elmokit[{extra}]"') from error
