"""Numbers as people write them."""

from __future__ import annotations

from typing import Any

import click


class Count(click.ParamType[int]):
    """A whole number, also written 1e6."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number."""
        try:
            number = float(value)
            if number != int(number):
                raise ValueError
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a whole number", param, ctx)
        return int(value) if str(value).lstrip("-").isdigit() else int(number)
