"""LoRA without PEFT's casts against PEFT itself."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import build_tiny_model

from reticent.training.lean_lora import lean_lora, round_lora_weights

IDS = torch.arange(20)[None] * 7 % 250


def peft_model(family: str, dtype: torch.dtype = torch.float32, size: float = 0.3, **options: Any) -> Any:
    settings = {"r": 3, "lora_alpha": 12, "target_modules": "all-linear", "fan_in_fan_out": family == "gpt2"} | options
    model = get_peft_model(build_tiny_model(family, dtype=dtype), LoraConfig(**settings)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits.double()


def lean_layers(model: Any) -> int:
    with lean_lora(model):
        return sum("forward" in part.__dict__ for part in model.modules())


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_lean_layers_compute_what_peft_computes(family: str) -> None:
    model = peft_model(family)
    expected = logits(model)
    with lean_lora(model):
        found = logits(model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert lean_layers(model) == len([m for m in model.modules() if hasattr(m, "lora_A") and m is not model])
    assert torch.equal(logits(model), expected), "outside of the context nothing has changed"
    with model.disable_adapter():
        assert (logits(model) - expected).abs().max() > 0.1


def test_half_precision_is_as_close_to_float32_as_peft() -> None:
    """With an adapter that adds a tenth of what the base computes, as trained ones do at most."""
    exact, half = logits(peft_model("llama", size=0.1)), peft_model("llama", torch.bfloat16, size=0.1)
    theirs = (logits(half) - exact).square().mean()
    with lean_lora(half):
        ours = (logits(half) - exact).square().mean()
    assert ours < 1.5 * theirs


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True, "bias": "none"}])
def test_other_kinds_of_lora_stay_with_peft(options: dict[str, Any]) -> None:
    model = peft_model("llama", **options)
    assert lean_layers(model) == 0
    expected = logits(model)
    with lean_lora(model):
        assert torch.equal(logits(model), expected)


def test_merged_and_disabled_layers_stay_with_peft() -> None:
    model = peft_model("llama")
    model.merge_adapter()
    assert lean_layers(model) == 0
    model.unmerge_adapter()
    with model.disable_adapter():
        assert lean_layers(model) == 0
    assert lean_layers(model) > 0


def test_an_error_inside_leaves_the_layers_as_they_were() -> None:
    model = peft_model("llama")
    with pytest.raises(RuntimeError, match="stop"), lean_lora(model):
        raise RuntimeError("stop")
    assert not any("forward" in part.__dict__ for part in model.modules())


def test_rounded_adapters_give_the_gradient_of_the_rounded_adapter_and_come_back_unrounded() -> None:
    """The oracle is PEFT itself on a float32 adapter whose values were rounded beforehand."""
    half = peft_model("llama", torch.bfloat16, size=0.1)
    before = {name: parameter.detach().clone() for name, parameter in half.named_parameters()}
    weights = [parameter for name, parameter in half.named_parameters() if "lora_" in name]

    def gradient(model_of: Any, of: list[torch.nn.Parameter]) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(model_of(input_ids=IDS).logits[0, :-1].float(), IDS[0, 1:])
        return torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, of)])

    with round_lora_weights(half):
        assert {weight.dtype for weight in weights} == {torch.bfloat16}
        found = gradient(half, weights)
    assert all(torch.equal(parameter, before[name]) for name, parameter in half.named_parameters())
    exact = peft_model("llama", size=0.1)
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            parameter.copy_(before[name].bfloat16() if "lora_" in name else before[name])
    expected = gradient(exact, [parameter for name, parameter in exact.named_parameters() if "lora_" in name])
    assert torch.dist(found, expected) < 0.1 * expected.norm()


def test_other_kinds_of_lora_are_not_rounded() -> None:
    model = peft_model("llama", torch.bfloat16, use_dora=True)
    with round_lora_weights(model):
        assert all(p.dtype == torch.float32 for name, p in model.named_parameters() if "lora_" in name)
