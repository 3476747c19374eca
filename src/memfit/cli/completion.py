"""Print tab completion for your shell.

memfit completion bash > ~/.local/share/bash-completion/completions/memfit
memfit completion zsh > ~/.zsh/completions/_memfit     # a folder of your fpath
"""

import argparse

_SHELLS = ("bash", "zsh", "fish", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="your shell")


def run(args: argparse.Namespace) -> int:
    """Prints the completions."""
    import shtab

    from memfit.cli.main import make_parser

    print(shtab.complete(make_parser(), args.shell))
    return 0
