"""Completions for shells, as those shells read them."""

import shutil
import subprocess

import pytest

from memfit.cli.main import COMMANDS, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_the_completions(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in COMMANDS)
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=printed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_bash_completes_the_options_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out + (
        "\nCOMP_WORDS=(memfit estimate --me); COMP_CWORD=2; _shtab_memfit; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["--memory"]
