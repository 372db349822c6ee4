"""The HTTP service: OpenAI's interface over one deployment, with continuous batching, keys, metrics and a dashboard."""
