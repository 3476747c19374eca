"""memfit makes Keras training fit into your GPU's memory."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import memfit
from memfit.errors import InvalidInput, MemfitError
from memfit.survival.flags import as_flags
from memfit.survival.scripts import after_import

# Each is a module of this package with a docstring (its help), `add_arguments` and `run`. They import what they
# need inside `run`, so that help takes milliseconds.
COMMANDS = (
    "cache",
    "compare",
    "completion",
    "devices",
    "doctor",
    "estimate",
    "explain",
    "lint",
    "plan",
    "report",
    "run",
    "runs",
    "slim",
    "top",
    "verify",
)

# A script that is run says what it says, and doctor shows the environment as it is. Other commands' own lines
# would drown in TensorFlow's greetings, which come with its import, oneDNN's at any level.
_GREETED = ("run", "doctor")
_WITHOUT_GREETINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for wrong usage or input, 1 for other failures."""
    parser = make_parser()
    args = _parse(parser, sys.argv[1:] if argv is None else list(argv))
    if args.command is None:
        parser.print_help()
        return 0
    if args.command not in _GREETED:
        _silence_greetings()
    try:
        code: int = args.run(args)
    except MemfitError as error:
        print(f"memfit: {as_flags(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, InvalidInput) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    return code


def _silence_greetings() -> None:
    """Lets TensorFlow be imported in silence. Afterwards the environment is the user's again.

    Estimates and plans are kept for an environment, and `memfit run`, which leaves it alone, looks for the same.
    """
    missing = [name for name in _WITHOUT_GREETINGS if name not in os.environ]

    def restore(tensorflow: object) -> None:
        for name in missing:
            os.environ.pop(name, None)

    os.environ.update({name: _WITHOUT_GREETINGS[name] for name in missing})
    after_import("tensorflow", restore)


def _parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parses a command line; what is behind "--" is the script's own, wherever memfit's options are."""
    args, rest = parser.parse_known_args(argv)
    # argparse gives positional arguments to the first place for them, which is before the options.
    own = argv[argv.index("--") + 1 :] if "--" in argv else []
    if rest and own and rest in (own, ["--", *own]) and getattr(args, "arguments", None) == []:
        args.arguments = own
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="memfit", description=__doc__, epilog="memfit COMMAND --help shows the options of a command."
    )
    parser.add_argument("--version", action="version", version=f"memfit {memfit.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"memfit.cli.{name}")
        paragraph = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=paragraph.partition("\n")[0],
            description=paragraph,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
