"""Run by .venv-parity: what Hugging Face computes, for the comparison in test_parity.py.

hf_reference.py make OUT bert|roberta EPS     a random model, its config, two texts padded together, its logits,
                                              and the gradients of the masked loss
hf_reference.py open FOLDER OUT               open a checkpoint with transformers, store every weight it holds
hf_reference.py adamw OUT                     fifty updates of torch.optim.AdamW
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCABULARY = 300
SHORT, LONG = 3, 200


def make(out: Path, kind: str, eps: float) -> None:
    roberta = kind == "roberta"
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
        "max_position_embeddings": 258 if roberta else 256, "type_vocab_size": 1 if roberta else 2, "layer_norm_eps": eps,
        "pad_token_id": 1 if roberta else 0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    configuration, model_class = (
        (transformers.RobertaConfig, transformers.RobertaForMaskedLM)
        if roberta
        else (transformers.BertConfig, transformers.BertForMaskedLM)
    )
    model = model_class(configuration(**shape)).eval()
    with torch.no_grad():  # away from the zeros and ones of a fresh model, so that every weight matters
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.03))
    model.save_pretrained(out, safe_serialization=True)
    generator = np.random.default_rng(1)
    ids = np.full((2, LONG), shape["pad_token_id"], np.int32)
    for row, size in enumerate((SHORT, LONG)):
        ids[row, :size] = [2, *generator.integers(10, VOCABULARY, size - 2), 3]
    attention = (np.arange(LONG)[None] < np.array([[SHORT], [LONG]])).astype(np.int32)
    positions = np.array([1, *(LONG + generator.choice(np.arange(1, LONG - 1), 7, replace=False))], np.int32)
    labels = generator.integers(10, VOCABULARY, 8).astype(np.int32)
    logits = model(input_ids=torch.from_numpy(ids).long(), attention_mask=torch.from_numpy(attention).long()).logits
    chosen = logits.reshape(-1, VOCABULARY)[torch.from_numpy(positions).long()]
    loss = torch.nn.functional.cross_entropy(chosen, torch.from_numpy(labels).long(), reduction="sum")
    loss.backward()
    gradients = {name: parameter.grad.clone().contiguous() for name, parameter in model.named_parameters()}
    save_file(gradients, out / "gradients.safetensors")
    np.savez(
        out / "reference.npz",
        ids=ids,
        attention=attention,
        positions=positions,
        labels=labels,
        logits=logits.detach().numpy(),
        loss=loss.item(),
    )


def open_checkpoint(folder: Path, out: Path) -> None:
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info  # nothing missing, unexpected, of another shape
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    assert len(tokenizer) == model.config.vocab_size, (len(tokenizer), model.config.vocab_size)
    save_file({name: parameter.detach().clone().contiguous() for name, parameter in model.named_parameters()}, out)


def adamw(out: Path) -> None:
    generator = np.random.default_rng(0)
    start = generator.standard_normal((5, 7)).astype(np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1)
    gradients, rates, after = [], [], []
    for step in range(50):
        gradient = (generator.standard_normal((5, 7)) * 10 ** generator.uniform(-6, 1)).astype(np.float32)
        rate = 1e-2 * (step + 1) / 50
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        gradients.append(gradient)
        rates.append(rate)
        after.append(weight.detach().numpy().copy())
    np.savez(out, start=start, gradients=gradients, rates=rates, after=after)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "make":
        out = Path(arguments[0])
        for kind, eps in zip(arguments[1::2], arguments[2::2], strict=True):
            make(out / f"{kind}-{eps}", kind, float(eps))
        adamw(out / "adamw.npz")
    else:
        for name in arguments:
            open_checkpoint(Path(name), Path(name) / "seen.safetensors")
