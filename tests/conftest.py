"""Tiny random models of every family, and adapters for them, shared by the tests."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from tiny_models import build_tiny_model, save_tiny_model

torch.set_num_threads(1)


@pytest.fixture
def tiny_model() -> Callable[..., Any]:
    return build_tiny_model


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved LLaMA-shaped model with a byte-level tokenizer, as a user's local folder would be."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_model(folder, "llama")
    return folder
