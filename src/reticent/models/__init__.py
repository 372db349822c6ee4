"""Base models: loading them, their architecture read by structure, and the signals their logits give."""
