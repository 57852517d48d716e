from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from mindstream_common.errors import ConfigError, InputError
from mindstream_trainer import checkpoint
from mindstream_trainer.checkpoint import (
    Checkpoint,
    State,
    check_resumable,
    latest_valid,
    prune,
    save,
    settings,
    verify,
)
from mindstream_trainer.config import ModelConfig, TrainerConfig

MODEL = ModelConfig(vocab_size=6, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "vocab.txt", "state.json")


def state(step: int, **fields: object) -> State:
    return State(run="r", step=step, window=2, batch=5, seed=1, settings=settings(TrainerConfig(), MODEL), **fields)


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n我\n", encoding="utf-8")
    return path


def saved(folder: Path, vocab: Path, step: int, value: float = 1.0) -> Path:
    model = {"bert.w": np.full((3, 4), value, np.float32)}
    optimizer = {"m.w": np.zeros((3, 4), np.float32), "v.w": np.ones((3, 4), np.float32)}
    return save(folder, model, optimizer, MODEL, vocab, state(step, tokens=10 * step))


def test_save_and_read_back(tmp_path: Path, vocab: Path) -> None:
    path = saved(tmp_path / "c", vocab, 100, 0.5)
    assert path.name == "step-00000100"
    found = verify(path)
    model, optimizer = found.arrays()
    assert (model["bert.w"] == 0.5).all()
    assert set(optimizer) == {"m.w", "v.w"}
    assert msgspec.structs.replace(found.state, files={}, sha256="") == state(100, tokens=1000)
    assert set(found.state.files) == set(FILES) - {"state.json"}


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_and_the_one_before_is_used(tmp_path: Path, vocab: Path, name: str) -> None:
    folder = tmp_path / "c"
    saved(folder, vocab, 1)
    last = saved(folder, vocab, 2) / name
    data = bytearray(last.read_bytes())
    data[0 if name == "state.json" else len(data) // 2] ^= 0x80
    last.write_bytes(data)
    warnings: list[str] = []
    found = latest_valid(folder, warnings.append)
    assert found is not None
    assert found.state.step == 1
    assert len(warnings) == 1
    assert "step-00000002" in warnings[0]
    assert name in warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_and_a_short_one(tmp_path: Path, vocab: Path, name: str) -> None:
    folder = tmp_path / "c"
    path = saved(folder, vocab, 2) / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=name):
        verify(path.parent)
    path.unlink()
    with pytest.raises(InputError, match=name):
        verify(path.parent)
    assert latest_valid(folder, lambda _: None) is None


def test_half_written_folders_do_not_count(tmp_path: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash at every rename and write: what is left is the checkpoint before, and the next save succeeds."""
    folder = tmp_path / "c"
    saved(folder, vocab, 1)
    for function in ("write_whole", "sync_folder"):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, function, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                saved(folder, vocab, 2)
        assert [p.name for p in checkpoint.steps(folder)] == ["step-00000001"]
        assert latest_valid(folder).state.step == 1  # type: ignore[union-attr]
    assert verify(saved(folder, vocab, 2)).state.step == 2


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t.replace('"window": 2', '"window": 1'),
        lambda t: re.sub('"sha256": "[0-9a-f]{64}"\\n}', '"sha256": ""\n}', t),
    ],
)
def test_a_state_that_was_edited_is_passed_over(tmp_path: Path, vocab: Path, edit: Callable[[str], str]) -> None:
    folder = tmp_path / "c"
    saved(folder, vocab, 1)
    path = saved(folder, vocab, 2) / "state.json"
    text = path.read_text(encoding="utf-8")
    assert edit(text) != text
    path.write_text(edit(text), encoding="utf-8")
    with pytest.raises(InputError, match=r"state\.json was changed: its sha256 is .{64}, (.{64}|none) was written"):
        verify(path.parent)
    assert latest_valid(folder, lambda _: None).state.step == 1  # type: ignore[union-attr]


def test_a_folder_under_another_name_is_passed_over(tmp_path: Path, vocab: Path) -> None:
    folder = tmp_path / "c"
    saved(folder, vocab, 2).rename(folder / "step-00000009")
    saved(folder, vocab, 1)
    with pytest.raises(InputError, match="of step 2; the folder's name says another"):
        verify(folder / "step-00000009")
    assert latest_valid(folder, lambda _: None).state.step == 1  # type: ignore[union-attr]
    (folder / "step-00000001").rename(tmp_path / "copy")  # people may call a copy what they like
    assert verify(tmp_path / "copy").state.step == 1


def test_what_was_passed_over_prunes_no_sound_one(tmp_path: Path, vocab: Path) -> None:
    folder = tmp_path / "c"
    for step in (1, 2, 3):
        (saved(folder, vocab, step) / "state.json").write_text(
            "{}" if step > 1 else (folder / "step-00000001/state.json").read_text()
        )
    warnings: list[str] = []
    checkpoint.set_aside(folder, 1, warnings.append)
    assert [path.name for path in checkpoint.steps(folder)] == ["step-00000001"]
    assert len(warnings) == 2
    prune(folder, 1)
    assert sorted(path.name for path in folder.iterdir()) == [
        "damaged-step-00000002", "damaged-step-00000003", "step-00000001",
    ]  # fmt: skip
    assert checkpoint.first_window(folder) == 2
    assert checkpoint.first_window(tmp_path / "none") == 1


def test_prune_keeps_the_newest_and_sweeps_leftovers(tmp_path: Path, vocab: Path) -> None:
    folder = tmp_path / "c"
    for step in (9, 10, 100, 1000):
        saved(folder, vocab, step)
    (folder / ".tmp-step-00002000").mkdir()
    prune(folder, 2)
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000100", "step-00001000"]


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert latest_valid(tmp_path) is None
    assert latest_valid(tmp_path / "absent") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_never_stored(tmp_path: Path, vocab: Path, bad: float) -> None:
    with pytest.raises(InputError, match=r"bert\.w .* not finite"):
        saved(tmp_path / "c", vocab, 3, bad)
    assert latest_valid(tmp_path / "c") is None


def test_settings_leave_out_what_changes_nothing() -> None:
    base = settings(TrainerConfig(), MODEL)
    assert (
        settings(TrainerConfig(micro_batch=4, log_every=1, checkpoint_every=7, steps=50, max_restarts=1), MODEL) == base
    )
    assert settings(TrainerConfig(schedule="linear", steps=50), MODEL) != settings(
        TrainerConfig(schedule="linear", steps=60), MODEL
    )


def test_a_mismatch_names_both_values() -> None:
    old = Checkpoint(Path("step-00000003"), state(3, tokenizer_sha256="a" * 64))
    now = State(run="r", seed=1, tokenizer_sha256="b" * 64, settings=settings(TrainerConfig(global_batch=12), MODEL))
    with pytest.raises(ConfigError) as caught:
        check_resumable(old, now)
    for word in ("global_batch is 12 now and was 32", "a" * 64, "b" * 64, "step-00000003"):
        assert word in str(caught.value)
    check_resumable(old, msgspec.structs.replace(old.state, step=0))
