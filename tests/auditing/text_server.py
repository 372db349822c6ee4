"""A completions server that shows text alone: it knows some texts by heart, and has so many answers to give."""

import json
import re

import httpx

from reticent.auditing.targets.endpoint import open_endpoint
from reticent.auditing.targets.endpoint_client import EndpointClient, EndpointSettings
from reticent.auditing.targets.http_retries import RetryingClient
from reticent.auditing.targets.targets import Target, TargetKind
from reticent.text.template import TextTemplate

SETTINGS = EndpointSettings("http://h", "m", attempts=2, concurrency=1)
SPENT = {"error": {"message": "spent", "code": "insufficient_quota", "type": "insufficient_quota", "param": None}}


class TextServer:
    """Goes on with a text that it knows, word by word; of any other prompt it makes "something else"."""

    def __init__(self, known=(), budget=10**9, refused=()):
        self.known, self.budget, self.refused = tuple(known), budget, frozenset(refused)
        self.bodies, self.answered = [], []
        self.marks = {}

    def __call__(self, request):
        body = json.loads(request.content)
        self.bodies.append(body)
        wrong = {"echo", "logprobs"} & body.keys() or [name for name in self.refused & body.keys() if body[name] != 1]
        if wrong:
            return httpx.Response(400, json={"error": {"message": "refused", "param": sorted(wrong)[0]}})
        if self.budget <= 0:
            return httpx.Response(429, json=SPENT)
        self.budget -= 1
        self.answered.append(body["prompt"])
        text = self.continuation(body["prompt"], body["max_tokens"])
        choices = [{"index": n, "text": text, **self.marks} for n in range(body.get("n", 1))]
        return httpx.Response(200, json={"choices": choices})

    def continuation(self, prompt, max_tokens):
        rest = next((text[len(prompt) :] for text in self.known if text.startswith(prompt)), " something else")
        return "".join(re.findall(r"\s*\S+", rest)[:max_tokens])


def client_of(server, settings=SETTINGS):
    transport = httpx.Client(transport=httpx.MockTransport(server))
    return EndpointClient(settings, RetryingClient(transport, settings.attempts, lambda seconds: None))


def text_target(server, template=None, **fields):
    client = client_of(server)
    scorer = open_endpoint(client, template or TextTemplate())
    return Target(TargetKind.ENDPOINT, {"name": "server"}, scorer, scorer.template, client=client, **fields)
