"""The commands. `bestpolicy --help` teaches them."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from bestpolicy._version import __version__
from bestpolicy.cli.algorithms import algorithms_command
from bestpolicy.cli.bounds import bounds
from bestpolicy.cli.compare import compare_command
from bestpolicy.cli.console import BAD_INPUT, INTERRUPTED, prepare_streams, say, silence
from bestpolicy.cli.demo import demo
from bestpolicy.cli.estimate import estimate
from bestpolicy.cli.identify import identify
from bestpolicy.cli.inspect import check, design, instances
from bestpolicy.cli.report import report, watch
from bestpolicy.cli.studies import rescue, resume, studies
from bestpolicy.cli.verify import verify
from bestpolicy.errors import BestPolicyError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="bestpolicy")
def commands() -> None:
    """Find a provably near-optimal policy from a simulator, with as few simulator calls as possible.

    MODEL is the name of a built-in instance (see `bestpolicy instances`) or an .npz file (numpy.savez) with the arrays

    \b
      features  (S,A,d)            discount or horizon  one number
      theta     (d,)  or (H,d)     rewards features @ theta in [0, 1]
      mu        (S,d) or (H,S,d)   probabilities of the next state features @ mu
      mask      (S,A), optional: which actions are allowed
    where H is the horizon of an episodic problem.

    `identify`, `estimate` and `resume` also take a simulator of your own, FILE.py:NAME; `bestpolicy identify --help`
    says what that may be.

    \b
    First steps:
      bestpolicy instances
      bestpolicy identify two-state --epsilon 0.1 --delta 0.05
      bestpolicy identify my_simulator.py:simulator --epsilon 0.1 --delta 0.05
      bestpolicy check my_model.npz
    """


for command in (
    identify,
    estimate,
    resume,
    studies,
    rescue,
    verify,
    report,
    watch,
    bounds,
    design,
    check,
    instances,
    demo,
):
    commands.add_command(command)
commands.add_command(algorithms_command)
commands.add_command(compare_command)


def main() -> None:
    """Run a command; bad input prints one line that begins with ``Error:`` and exits with 2."""
    prepare_streams()
    status = 0
    try:
        status = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        status = _fail(f"the output cannot be written: {error.strerror or error}. Send it to a disk with room.")
    sys.exit(status)


def _run() -> int:
    try:
        status = commands.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        for line in error.format_message().splitlines():
            say(line)
        return 0
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "bestpolicy"
        message = error.format_message()
        return _fail(f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} See '{command} --help'.")
    except BestPolicyError as error:
        return _fail(_as_typed(str(error)))
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.", err=True)
        return INTERRUPTED
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}. Give a path that exists and may be written, with room.")
    return status if isinstance(status, int) else 0


def _as_typed(message: str) -> str:
    """Name a setting as it is typed on the command line: --max-samples, not max_samples."""
    name, space, rest = message.partition(" ")
    options = {p.name: p.opts[0] for c in commands.commands.values() for p in c.params if isinstance(p, click.Option)}
    return options.get(name, name) + space + rest


def _fail(message: str) -> int:
    with suppress(OSError):  # without a place for it, the exit code must do
        say("Error: " + " ".join(message.split()), err=True)
    return BAD_INPUT


__all__ = ["commands", "main"]
