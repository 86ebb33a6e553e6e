"""`bestpolicy report` and `watch`: show what was certified, why, and how it compares."""

from __future__ import annotations

import re
import webbrowser

import click

from bestpolicy.cli import options
from bestpolicy.cli.console import say
from bestpolicy.errors import InvalidInput
from bestpolicy.instances.loading import load_model


@click.command()
@click.argument("file")
@options.name
@click.option("--output", default="report.html", show_default=True, type=options.NEW_FILE, help="Page to write.")
@click.option("--model", help="The true model, if it is known and the study does not remember it.")
@click.option("--no-bounds", is_flag=True, help="Leave out lower bound and price of certainty (up to 8 s).")
@click.option("--grid", help="Draw the states as a grid of ROWSxCOLUMNS, such as 4x12.")
def report(file: str, name: str | None, output: str, model: str | None, no_bounds: bool, grid: str | None) -> None:
    """Write one page of HTML about FILE: a file of studies, a certificate, or a table of `bestpolicy compare`.

    The page holds everything and asks for nothing from the network: open it, or send it to a colleague.
    """
    from bestpolicy.report import write_report

    truth = None if model is None else load_model(model)
    target = write_report(file, output, name=name, model=truth, bounds=not no_bounds, grid=_read_grid(grid))
    say(f"Written: {target} ({target.stat().st_size / 1000:,.0f} kB)")


@click.command()
@click.argument("file")
@options.name
@click.option("--port", type=int, default=0, show_default=True, help="Where to serve it; 0 for any free one.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
def watch(file: str, name: str | None, port: int, no_open: bool) -> None:
    """Show the page of a study in FILE while it runs, on this machine alone; Ctrl-C ends it.

    The page follows the run as checks arrive. The run itself is not touched: it goes on in its own process.
    """
    from bestpolicy.report.live import LivePage, Server

    with Server(LivePage(file, name), port) as server:
        try:
            say(f"Watching {file} at {server.url} (Ctrl-C to stop)")
            if not no_open:
                webbrowser.open(server.url)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:  # the way to end it, so not a failure
            say("Stopped.")


def _read_grid(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = re.fullmatch(r"([0-9]{1,4})[x×]([0-9]{1,4})", text.strip())
    if sides is None:
        raise InvalidInput(f"grid must be written ROWSxCOLUMNS, such as 4x12. Got {text!r} instead.")
    return int(sides[1]), int(sides[2])
