"""The loss of a batch of texts under any adapted model, without the logits of the whole batch in memory.

Shape suffixes: B texts, T positions, N scored tokens, D hidden size, V vocabulary.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from reticent.text.template import IGNORED_LABEL
from reticent.training.loss import chunked_cross_entropy
from reticent.training.vocabulary_head import VocabularyHead

_ROWS_AT_ONCE = 256
_PROBE_TOKENS = (1, 2, 3, 5)

Reduction = Literal["mean of tokens", "sum of text means"]
"""`mean of tokens`: over all scored tokens of the batch. `sum of text means`: each text's mean over its own scored
tokens, summed, so that a text's share does not depend on the batch it is in."""


class TextLoss:
    """Next-token cross-entropy of a `transformers`-style module, causal or encoder-decoder.

    Args:
        module: what `attach` returned.
        num_virtual_rows: leading rows of logits that belong to no token.
        in_chunks: whether to keep the vocabulary projection out of the model's own forward pass. Per-sample gradients
            of a trained projection need it inside.
    """

    def __init__(self, module: Any, num_virtual_rows: int, *, in_chunks: bool = True) -> None:
        self._module = module
        self._num_virtual_rows = num_virtual_rows
        self._config: Any = self._module.config
        self._is_encoder_decoder = bool(self._config.is_encoder_decoder)
        self._head = VocabularyHead(module)
        self._in_chunks = in_chunks and self._is_head_last()

    def __call__(self, batch: dict[str, Tensor], reduction: Reduction) -> tuple[Tensor, Tensor]:
        """The loss of a batch that `template.collate` made, on the module's device.

        Returns:
            The scalar loss, in nats, which carries the gradient, and each scored token's loss, in nats, float32[N],
            text after text, which carries none.
        """
        labels_BT = batch["labels"] if self._is_encoder_decoder else batch["labels"][:, 1:]
        scored_BT = labels_BT != IGNORED_LABEL
        targets_N = labels_BT[scored_BT]
        if reduction == "mean of tokens":
            weights_N = torch.full_like(targets_N, 1, dtype=torch.float32) / max(1, len(targets_N))
        else:
            weights_N = (1.0 / scored_BT.sum(1, keepdim=True)).expand(scored_BT.shape)[scored_BT]
        if not self._in_chunks:
            logits_NV = self._scored_rows(self._forward(batch).logits, scored_BT).float()
            losses_N = cross_entropy(logits_NV, targets_N, reduction="none")
            return (losses_N * weights_N).sum(), losses_N.detach()
        hidden_ND = self._scored_rows(self._head.inputs_of(lambda: self._forward(batch)), scored_BT)
        is_frozen = not any(parameter.requires_grad for parameter in self._head.projection.parameters())
        if is_frozen and self._head.is_plain:
            return chunked_cross_entropy(hidden_ND, self._head.weight, self._head.bias, targets_N, weights_N)
        return self._loss_through_head(hidden_ND, targets_N, weights_N)

    def _scored_rows(self, rows_BTX: Tensor, scored_BT: Tensor) -> Tensor:
        """Rows that predict a scored token, text after text; the last position of a causal model predicts nothing."""
        rows_BTX = rows_BTX[:, self._num_virtual_rows :]
        return (rows_BTX if self._is_encoder_decoder else rows_BTX[:, :-1])[scored_BT]

    def _loss_through_head(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
        """With a trained projection: chunks of rows whose logits are computed again for the gradient, not kept."""

        def chunk_losses(hidden: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(self._head.projection(hidden).float(), targets, reduction="none")

        chunks = zip(torch.split(hidden_ND, _ROWS_AT_ONCE), torch.split(targets_N, _ROWS_AT_ONCE), strict=True)
        losses_N = torch.cat([checkpoint(chunk_losses, *chunk, use_reentrant=False) for chunk in chunks])
        return (losses_N * weights_N).sum(), losses_N.detach()

    def _forward(self, batch: dict[str, Tensor]) -> Any:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if self._is_encoder_decoder:
            inputs["decoder_input_ids"] = self._shift_targets(batch["target_ids"])
        return self._module(**inputs, use_cache=False)

    def _shift_targets(self, targets_BT: Tensor) -> Tensor:
        """Make the decoder's input: its start token, then the target without its last token."""
        start = torch.full_like(targets_BT[:, :1], int(self._config.decoder_start_token_id))
        return torch.cat([start, targets_BT[:, :-1]], dim=1)

    def _is_head_last(self) -> bool:
        """True if the model's logits are the projection's output and no more: some models scale or cap them after."""
        ids = torch.tensor([_PROBE_TOKENS], device=next(self._module.parameters()).device)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "target_ids": ids}
        was_training = self._module.training
        self._module.eval()
        try:
            return self._head.is_last(lambda: self._forward(batch).logits)
        finally:
            self._module.train(was_training)
