"""Options of `reticent serve` about connections and what is logged of clients."""

from typing import Annotated, Final

import typer

from reticent.server.settings import ClientAddresses, ConnectionLimits

CONNECTIONS: Final = ConnectionLimits()

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
