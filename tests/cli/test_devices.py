"""memfit devices."""

import json

from memfit.cli.main import main


def test_the_table_has_memory_specifications_and_their_source(capsys):
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("A100 40GB"))
    assert "39.42 GiB" in row
    assert "OpenXLA" in row
    assert "to add a GPU" in out
    assert 'memfit estimate train.py --device "A100 40GB"' in out


def test_programs_get_plain_data(capsys):
    assert main(["devices", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["Tesla T4"]["specs"]["compute_capability"] == "7.5"
    assert found["GTX 1060"]["specs"] is None
