"""Values from the command line: each becomes the value that was meant, or an error that says what is.

`parse` reads the spelling; the others take a parameter's name and a value, and check one kind each.
`sizes`, `environment_numbers` and `words` are checks for `params.check(..., extra={...})`.
"""

from __future__ import annotations

import ast
from typing import Any

from rslib.errors import UserError


class ParameterError(UserError, ValueError):
    """A notebook parameter that is not valid."""


def parse(value: Any) -> Any:
    """A string from the command line as the Python value it spells, where it spells one."""
    if not isinstance(value, str):
        return value
    spelt = {"true": True, "false": False, "none": None, "null": None, "": None}
    text = value.strip()
    if text.lower() in spelt:
        return spelt[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def whole(name: str, value: Any, default: int, least: int) -> int:
    """Check a whole number; None is the default."""
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 is meant as 1000
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return value


def distinct_seeds(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    """Check seeds in a list, or a single one; None is the default."""
    if value is None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list | tuple) or not value:
        raise ParameterError(f'seeds must be a list such as "[1, 2, 3]", got {value!r}')
    seeds = tuple(whole("every seed", seed, 0, least=0) for seed in value)
    if len(set(seeds)) != len(seeds):
        raise ParameterError(f"seeds must differ, got {list(seeds)}")
    return seeds


def sizes(value: Any) -> tuple[int, ...] | None:
    """A check for `extra`: memory sizes as a list, or None for the notebook's own choice."""
    if value is None:
        return None
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ParameterError('memory_sizes must be a list such as "[8, 24]", got an empty one')
    return tuple(dict.fromkeys(whole("every memory size", v, 0, least=1) for v in values))


def environment_numbers(value: Any) -> list[int] | None:
    """A check for `extra`: numbers such as "0-9,20" or a list of them, or None for the paper's."""
    if value is None:
        return None
    numbers: list[int] = []
    if isinstance(value, list | tuple):
        numbers += [whole("every environment", v, 0, least=0) for v in value]
    else:
        for part in str(value).split(","):
            low, dash, high = part.strip().partition("-")
            whole_numbers = low.isdigit() and (not dash or high.isdigit())
            if not whole_numbers or int(high or low) < int(low):
                raise ParameterError(f"environments are written like 0-9,20; got {value!r}")
            numbers += range(int(low), int(high or low) + 1)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ParameterError(f"environments must be given once each, got {value!r}")
    return numbers


def words(value: Any) -> list[str] | None:
    """A check for `extra`: names or paths in one string, or None; a list has been checked before."""
    return value if value is None or isinstance(value, list) else str(value).split()


def names(name: str, value: Any) -> tuple[str, ...]:
    """Names in one string or in a list, each once; None is none of them."""
    listed = value.replace(",", " ").split() if isinstance(value, str) else value or ()
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ParameterError(f'{name} must be names such as "ets heur-gd:0.9", got {value!r}')
    return tuple(dict.fromkeys(listed))


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Check one of several words."""
    if value not in allowed:
        raise ParameterError(f"{name} must be one of {', '.join(allowed)}, got {str(value)[:80]!r}")
    return value


def checked(name: str, value: Any, wanted: Any) -> Any:
    """Check by what `extra` says: a tuple of allowed values, `int`, `bool`, or a function."""
    if isinstance(wanted, tuple):
        return one_of(name, value, wanted)
    if wanted is int:
        return whole(name, value, 0, least=0)
    if wanted is bool:
        if not isinstance(value, bool):
            raise ParameterError(f"{name} must be true or false, got {value!r}")
        return value
    return wanted(value)
