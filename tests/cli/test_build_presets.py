"""`worlds build --preset`: what a preset fixes, and that an option overrides it."""

import json

import pytest
from tiny_models import save_tiny_model

from reticent.cli import main as cli
from reticent.training.presets import PRESETS, Preset


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """As many blocks as the stable preset adapts, and one more."""
    folder = tmp_path_factory.mktemp("deep-llama")
    save_tiny_model(folder, "llama", layers=1 + (PRESETS[Preset.STABLE].num_top_layers or 0))
    return folder


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], {}),
        (["--preset", "stable"], {"preset": Preset.STABLE}),
        (
            [
                "--preset",
                "stable",
                "--rank",
                "3",
                "--learning-rate",
                "0.02",
                "--epochs",
                "2",
                "--adapt-layers",
                "top:1",
            ],
            {"preset": Preset.STABLE, "rank": 3, "learning_rate": 0.02, "epochs": 2, "num_top_layers": 1},
        ),
    ],
)
def test_a_preset_fixes_what_no_option_says(capsys, tmp_path, base, options, changed):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"letter {number} of some"}) + "\n" for number in range(4)))
    command = ["worlds", "build", str(corpus), "--model", str(base), "--out", str(tmp_path / "run")]
    assert cli.main([*command, "--worlds", "2", "--max-tokens", "8", "--json", *options]) == 0
    built = json.loads(capsys.readouterr().out)
    values = vars(PRESETS[changed.pop("preset", Preset.PLAIN)]) | changed
    assert built["lora"]["rank"] == values["rank"]
    assert built["lora"]["alpha"] == 2.0 * values["rank"]
    assert built["lora"]["num_top_layers"] == values["num_top_layers"]
    assert built["training"]["epochs"] == values["epochs"]
    assert built["training"]["learning_rate"] == values["learning_rate"]


def test_the_plain_preset_is_what_a_build_was_before_presets():
    plain = PRESETS[Preset.PLAIN]
    assert (plain.learning_rate, plain.epochs, plain.rank, plain.num_top_layers) == (3e-4, 1, 8, None)


def test_an_unknown_preset_is_named(capsys, tmp_path):
    assert cli.main(["worlds", "build", str(tmp_path), "--out", str(tmp_path / "run"), "--preset", "wild"]) == 2
    assert "wild" in capsys.readouterr().err
