"""`jaxckpt explain-oom` in the shell."""

import json
from pathlib import Path

from typer.testing import CliRunner

from jaxckpt.cli.app import app
from jaxckpt.cli.console import run

TEXT = Path(__file__).parents[1] / "oom" / "logs" / "gpu_bfc.txt"


def test_a_log_is_explained():
    shown = CliRunner().invoke(app, ["explain-oom", str(TEXT)])
    assert shown.exit_code == 0, shown.output
    assert "9.88 GiB" in shown.stdout and "GPT/block_*/attn" in shown.stdout and "jaxckpt plan" in shown.stdout


def test_standard_input_is_read_and_json_is_one_object():
    shown = CliRunner().invoke(app, ["explain-oom", "-", "--json"], input=TEXT.read_bytes())
    data = json.loads(shown.stdout)
    assert data["requested_bytes"] == 10608442112
    assert data["buffers"][0]["scope"] == "GPT/head" and data["buffers"][0]["sort"] == "logits"
    assert [finding["cause"] for finding in data["findings"]] == ["need"]


def test_a_text_without_a_message_and_a_missing_file_are_refused(tmp_path, capsys):
    (tmp_path / "log").write_text("all is well")
    for file, words in ((tmp_path / "log", "holds no out-of-memory message"), (tmp_path / "none", "cannot be read")):
        assert run(lambda file=file: app(["explain-oom", str(file)], standalone_mode=False)) == 2
        assert words in capsys.readouterr().err
