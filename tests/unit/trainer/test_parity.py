"""Our cell against Hugging Face, in numbers. The references are computed here and now by .venv-parity."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from mindstream_trainer import checkpoint, weights
from mindstream_trainer.config import ModelConfig, TrainerConfig, read_json

pytestmark = pytest.mark.mindspore
ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
CASES = [("bert", "1e-12"), ("bert", "1e-5"), ("roberta", "1e-12"), ("roberta", "1e-5")]


def reference(*arguments: object) -> None:
    if not PYTHON.exists():
        pytest.fail("there is no .venv-parity to compare with: run `make setup-parity`")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(PYTHON), str(Path(__file__).with_name("hf_reference.py")), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    reference("make", folder, *(word for case in CASES for word in case))
    return folder


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def made(request: pytest.FixtureRequest, references: Path) -> Path:
    return references / "-".join(request.param)


def loaded(folder: Path) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    config = ModelConfig.from_hf(read_json(str(folder / "config.json")))
    source = weights.read(folder / "model.safetensors")
    return config, source


def cell(config: ModelConfig, source: dict[str, np.ndarray]):  # type: ignore[no-untyped-def]
    from mindstream_trainer.net import Net

    ours, notes = weights.from_hf(source, config, 1, "reference")
    assert notes == []
    return Net(TrainerConfig(dropout=0.0), config, ours)


def logits(config: ModelConfig, source: dict[str, np.ndarray], data: np.lib.npyio.NpzFile) -> np.ndarray:
    from mindspore import Tensor

    out = cell(config, source).model(Tensor(data["ids"]), Tensor(data["attention"])).asnumpy()
    return out.reshape(data["logits"].shape)


def test_logits_loss_and_gradients(made: Path) -> None:
    from mindspore import Tensor

    config, source = loaded(made)
    data = np.load(made / "reference.npz")
    assert np.abs(logits(config, source, data) - data["logits"]).max() < 1e-4

    net = cell(config, source)
    batch = (data["ids"], data["attention"], data["positions"], data["labels"], np.ones(8, np.float32))
    loss = net.step_once._accumulate(*(Tensor(array) for array in batch)).asnumpy()
    assert float(loss) == pytest.approx(float(data["loss"]), rel=1e-5)
    theirs = weights.read(made / "gradients.safetensors")
    sums = {p.name.removeprefix("sum."): p.asnumpy() for p in net.step_once.sums}
    ours = weights.to_hf(sums, config)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        scale = max(np.abs(gradient).max(), 1e-2)
        assert np.abs(ours[name] - gradient).max() / scale < 1e-4, name


def test_swapped_query_and_key_are_noticed(made: Path) -> None:
    """All shapes fit, so only the numbers can tell (the check above must be able to fail)."""
    config, source = loaded(made)
    for i in range(config.num_hidden_layers):
        prefix = f"{config.model_type}.encoder.layer.{i}.attention.self"
        for end in ("weight", "bias"):
            query, key = f"{prefix}.query.{end}", f"{prefix}.key.{end}"
            source[query], source[key] = source[key], source[query]
    data = np.load(made / "reference.npz")
    assert np.abs(logits(config, source, data) - data["logits"]).max() > 1e-3  # ten times what parity allows


def test_padding_changes_nothing(made: Path) -> None:
    """The short text alone has the logits that it has beside the long one."""
    from mindspore import Tensor

    config, source = loaded(made)
    data = np.load(made / "reference.npz")
    short = data["ids"][:1, :3]
    alone = cell(config, source).model(Tensor(short), Tensor(np.ones_like(short))).asnumpy()
    assert np.abs(alone - data["logits"][0, :3]).max() < 1e-4


def test_our_checkpoints_open_in_transformers(references: Path, tmp_path: Path) -> None:
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(0x4E00 + i) for i in range(295))]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    written = {}
    for case in CASES:
        name = "-".join(case)
        config, source = loaded(references / name)
        ours, _ = weights.from_hf(source, config, 1, name)
        state = checkpoint.State(run="r", seed=1)
        path = checkpoint.save(tmp_path / name, weights.to_hf(ours, config), {"m.w": np.zeros(1)}, config, vocab, state)
        written[path] = source
    reference("open", *written)
    for path, source in written.items():
        seen = weights.read(path / "seen.safetensors")
        assert seen.keys() == source.keys()
        for name, array in source.items():
            assert array.tobytes() == seen[name].tobytes(), name


def test_adamw_is_torch_s(references: Path) -> None:
    from mindspore import Parameter, Tensor
    from mindstream_trainer.optimizer import AdamW

    data = np.load(references / "adamw.npz")
    weight = Parameter(Tensor(data["start"]), name="w")
    optimizer = AdamW([weight], (0.9, 0.999), 1e-8, 0.1)
    for step, (gradient, rate, after) in enumerate(
        zip(data["gradients"], data["rates"], data["after"], strict=True), 1
    ):
        optimizer((Tensor(gradient),), Tensor(1.0), *optimizer.scalars(float(rate), step).tensors())
        assert np.abs(weight.asnumpy() - after).max() < 5e-6, step
