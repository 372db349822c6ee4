"""The batched engine against PEFT, one adapter at a time, on the model's own forward pass."""

from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from rounding import assert_largest, enlarged
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import FAMILIES, build_tiny_model

from reticent.engine.engine import Engine
from reticent.errors import InvalidValueError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder

PROMPT = [11, 200, 3, 77, 42, 9, 140]
CONTINUATION = [5, 250, 33]


def peft_logits(family: str, adapters: StackedAdapters, world: int, tokens: list[int], dtype: torch.dtype) -> Any:
    """Logits after every position, by PEFT on an unmerged adapter of a fresh model."""
    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=int(adapters.alpha),
        target_modules=list(adapters.down),
        fan_in_fan_out=family == "gpt2",
        lora_dropout=0.0,
    )
    model = get_peft_model(build_tiny_model(family, dtype=dtype), config, autocast_adapter_dtype=False)
    state = model.state_dict()
    with torch.no_grad():
        for path in adapters.down:
            state[f"base_model.model.{path}.lora_A.default.weight"].copy_(adapters.down[path][world])
            state[f"base_model.model.{path}.lora_B.default.weight"].copy_(adapters.up[path][world])
        return model.eval()(input_ids=torch.tensor([tokens])).logits[0].float().numpy()


CASES = [
    pytest.param(["attention"], 3, None, id="attention-odd-rank"),
    pytest.param(["all-linear"], 5, 2, id="all-linear-top2"),
    pytest.param(["all-linear"], 1, 1, id="all-linear-rank1-top1"),
]


@pytest.mark.parametrize(("names", "rank", "top"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_decoding_matches_peft(family: str, names: list[str], rank: int, top: int | None) -> None:
    decoder = batched_decoder(build_tiny_model(family))
    adapters = random_adapters(decoder, names, rank, top)
    engine = Engine(decoder, adapters)
    tokens = PROMPT + CONTINUATION
    peer, expected = (
        np.stack([peft_logits(family, adapters, j, tokens, dtype) for j in range(NUM_WORLDS)])
        for dtype in (torch.float32, torch.float64)
    )
    with torch.no_grad():
        public = build_tiny_model(family)(input_ids=torch.tensor([tokens])).logits[0].numpy()
    candidates = np.arange(0, engine.vocab_size, 3)

    context = engine.open(PROMPT)
    for step, token in enumerate([*CONTINUATION, None]):
        at = len(PROMPT) - 1 + step
        world_logits = engine.world_logits(context, candidates)
        close = enlarged(peer[:, at], expected[:, at])
        np.testing.assert_allclose(world_logits, expected[:, at, candidates], rtol=close, atol=close)
        np.testing.assert_allclose(engine.public_logits(context), public[at], rtol=2e-4, atol=2e-4)
        assert_largest(world_logits.argmax(1), expected[:, at, candidates], close)
        if token is not None:
            engine.extend([context], [token])

    uncached = engine.open(tokens)
    uncached_logits = engine.world_logits(uncached, candidates)
    np.testing.assert_allclose(uncached_logits, expected[:, -1, candidates], rtol=close, atol=close)
    # The adapters must matter, or agreement above would show nothing.
    assert np.abs(expected - public).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_within_its_tolerance(family: str) -> None:
    decoder = batched_decoder(build_tiny_model(family, dtype=torch.bfloat16))
    adapters = random_adapters(decoder, ["attention"], 2, None)
    engine = Engine(decoder, adapters)
    exact, rounded = (
        np.stack([peft_logits(family, adapters, j, PROMPT, dtype)[-1] for j in range(NUM_WORLDS)])
        for dtype in (torch.float32, torch.bfloat16)
    )
    computed = engine.world_logits(engine.open(PROMPT), np.arange(engine.vocab_size))
    # Both round differently; ours may be no further from the float32 truth than PEFT's, give or take.
    assert np.linalg.norm(computed - exact) < 1.5 * np.linalg.norm(rounded - exact)
    assert np.linalg.norm(computed - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_several_contexts_decode_as_they_would_alone(family: str) -> None:
    decoder = batched_decoder(build_tiny_model(family))
    engine = Engine(decoder, random_adapters(decoder, ["attention"], 3, 2))
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, 8, 8]]
    candidates = np.arange(engine.vocab_size)
    together = [engine.open(prompt) for prompt in prompts]
    engine.extend(together, [1, 2, 3])
    engine.extend(together[::-1], [6, 5, 4])
    for prompt, tokens, context in zip(prompts, ([1, 4], [2, 5], [3, 6]), together, strict=True):
        alone = engine.open(prompt + tokens)
        assert alone.length == context.length
        np.testing.assert_allclose(
            engine.world_logits(context, candidates), engine.world_logits(alone, candidates), rtol=2e-4, atol=2e-4
        )


@pytest.mark.parametrize("names", [["o_proj"], ["down_proj"], ["v_proj", "up_proj"]])
def test_any_subset_of_modules_can_be_adapted(names: list[str]) -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, names, 2, 2)
    engine = Engine(decoder, adapters)
    context = engine.open(PROMPT)
    engine.extend([context], CONTINUATION[:1])
    expected = np.stack(
        [peft_logits("llama", adapters, j, PROMPT + CONTINUATION[:1], torch.float32)[-1] for j in range(NUM_WORLDS)]
    )
    computed = engine.world_logits(context, np.arange(engine.vocab_size))
    np.testing.assert_allclose(computed, expected, rtol=2e-4, atol=2e-4)


def test_prefill_in_several_parts_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    engine = Engine(decoder, random_adapters(decoder, ["attention"], 3, None))
    candidates = np.arange(engine.vocab_size)
    whole = engine.open(PROMPT)
    monkeypatch.setattr("reticent.engine.engine._PREFILL_TOKENS", 2 * len(PROMPT))
    opening, others = engine.prefill_in_chunks(PROMPT), [engine.open(PROMPT[:3])]
    # Others decode between the parts.
    while True:
        try:
            next(opening)
        except StopIteration as end:
            parts = end.value
            break
        engine.extend(others, [9])
    assert others[0].length == 3 + NUM_WORLDS // 2 - 1
    assert not torch.is_inference_mode_enabled()
    engine.extend([whole, parts], [9, 9])
    np.testing.assert_allclose(
        engine.world_logits(whole, candidates), engine.world_logits(parts, candidates), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("prompt", [[3, 10**6], [-1, 3], []])
def test_a_prompt_outside_the_vocabulary_is_refused(prompt: list[int]) -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    engine = Engine(decoder, random_adapters(decoder, ["attention"], 3, None))
    with pytest.raises(InvalidValueError, match=r"vocabulary|must have 1 to"):
        engine.open(prompt)


def test_nothing_to_extend_is_no_error() -> None:
    decoder = batched_decoder(build_tiny_model("llama"))
    Engine(decoder, random_adapters(decoder, ["attention"], 3, None)).extend([], [])
