"""Gradient norm: how much the text would still move the trained parameters (arXiv 2402.17012). White-box."""

from reticent.auditing.attacks.evidence import Missing, Score


def gradient_norm(norm: float) -> Score:
    """−‖∇ loss‖ over the trainable parameters.

    A norm that is infinite or not a number gives no score: the gradient overflowed, which says nothing of membership.
    """
    if not 0.0 <= norm < float("inf"):
        return Missing(f"the gradient norm is {norm}")
    return -float(norm)
