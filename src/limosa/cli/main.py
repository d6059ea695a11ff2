"""`limosa`: the table of commands and the boundary where errors become exit statuses.

Commands are imported only when called, so `limosa check` never loads torch.
Exit status: 0 done, 1 something failed that is not the user's doing, 2 bad input, 130 interrupted.
"""

import errno
import importlib
import signal
import sys

import click

from limosa import __version__
from limosa.base.errors import LimosaError, UserError
from limosa.base.yaml_file import name_nearest

COMMANDS = {
    "train": "limosa.cli.train:train",
    "check": "limosa.cli.check:check",
    "sft": "limosa.cli.sft:sft",
    "demos": "limosa.cli.demos:demos",
    "models": "limosa.cli.models:models",
    "domains": "limosa.cli.domains:domains",
}


class CommandTable(click.Group):
    """Loads a command's module on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, or None where the table has none."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{COMMANDS[cmd_name]} is no command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with; a wrong name is told the nearest one."""
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            hint = f"commands: {', '.join(COMMANDS)}{name_nearest(args[0], COMMANDS)}"
            raise UserError(f"no such command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


@click.command(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="limosa")
def cli() -> None:
    """Post-train a language model for agent work, and prove that it got better.

    \b
    Examples:
      limosa check examples/quickstart.yaml
      limosa train examples/quickstart.yaml
      limosa train --resume runs/quickstart-20260101-120000
    """


def describe_os_error(error: OSError) -> str:
    """What the system refused; a full disk is told with the way out."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{type(error).__name__}: {error}"
    where = f" {error.filename}" if error.filename else ""
    hint = "make room, then go on with a run by limosa train --resume, or give the command again"
    return f"cannot write{where}: {error.strerror}\nhint: {hint}"


def main() -> None:
    """Run the command line; errors that Limosa raises on purpose print without a traceback.

    A reader of our output that has gone (`| head`) is click's matter: it ends in silence.
    """
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except LimosaError as error:
        click.echo(f"error: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"error: {describe_os_error(error)}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        # All is written; one more Ctrl-C could only spoil the farewell.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        click.echo("interrupted", err=True)
        sys.exit(130)
