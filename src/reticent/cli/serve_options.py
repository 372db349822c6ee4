"""Options of `reticent serve` about what clients may ask for, their connections, and what is logged of them."""

from typing import Annotated, Final

import typer

from reticent.server.settings import ClientAddresses, ConnectionLimits, Limits

CONNECTIONS: Final = ConnectionLimits()
LIMITS: Final = Limits()

MaxConnections = Annotated[
    int, typer.Option(help="Connections at one time; fewer where the process may open too few files.")
]
HeadTimeout = Annotated[float, typer.Option(help="Seconds for a request's head to arrive.")]
BodyTimeout = Annotated[float, typer.Option(help="Seconds for a request's body to arrive.")]
WriteTimeout = Annotated[float, typer.Option(help="Seconds for which an answer is kept that its client does not read.")]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        help="Address or network whose X-Forwarded-For is believed, repeatable; loopback unless given.",
    ),
]
Addresses = Annotated[
    ClientAddresses, typer.Option(help="Log lines that name the client's address: those about refusals, all, or none.")
]

MaxConcurrent = Annotated[int, typer.Option(help="Answers that are decoded together.")]
MaxQueue = Annotated[int, typer.Option(help="Answers of one API key that may wait.")]
MaxAnswers = Annotated[int, typer.Option(help="Most answers to one request: n times its prompts.")]
MaxTokens = Annotated[int, typer.Option(help="Longest answer, in tokens.")]
MaxPromptTokens = Annotated[
    int | None, typer.Option(help="Longest prompt; what the context window leaves room for unless given.")
]
MaxBodyBytes = Annotated[int, typer.Option(help="Largest request body.")]
DefaultMaxTokens = Annotated[int, typer.Option(help="Length of a chat answer whose request names none.")]
DrainSeconds = Annotated[
    float, typer.Option(help="Seconds for which answers in progress continue once it has to stop.")
]
