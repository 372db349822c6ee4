"""Sealing of a deployment's state for the database.

Guarantee: what `unseal` returns was sealed under the deployment's key for this deployment, this run and this schema.
The size of the sealed bytes depends on the guarantee and the number of worlds alone.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from reticent.dp.curator import CorpusState
from reticent.dp.release import CorpusSettings
from reticent.errors import DeploymentStateError
from reticent.guarantees import Guarantee
from reticent.ledger import schema
from reticent.ledger.chain import Totals
from reticent.ledger.keys import StateKey
from reticent.pac.charging import ChargingRule
from reticent.pac.curator import CuratorState

_MAGIC: Final = b"RETICENT"
_HEADER: Final = struct.Struct(">8sH16s32s")
# behind it, from the version on that keeps it: the name of the charging rule, filled up with zeros
_RULE: Final = struct.Struct(f">{schema.RULE_LETTERS}s")
# behind that, for the corpus guarantee: its name, c, g, τ, k, m and the name of the relation
_CONSTANTS: Final = struct.Struct(f">{schema.NAME_LETTERS}sdddQQ{schema.NAME_LETTERS}s")
# secret, tokens released, dissenting steps, spent units, whether there is a cap, cap units, head of the release chain
_COUNTS: Final = struct.Struct(">QQQ16s?16s32s")
# the same without what a corpus deployment lacks: tokens released, spent units, cap, head
_CORPUS_COUNTS: Final = struct.Struct(">Q16s?16s32s")
_POSTERIOR_TYPE: Final = np.dtype(">f8")


DeploymentState = CuratorState | CorpusState
"""All that a deployment must keep to continue, under either guarantee."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header sealed along, which lies beside the sealed bytes in the clear: all of it is authenticated.

    Attributes:
        schema: version of the tables.
        deployment_id: names the deployment.
        run_digest: names its run.
        charging_rule: the rule by which tokens are charged; `fixed` under the corpus guarantee.
        constants: of a corpus deployment; None under the other guarantee.
    """

    schema: int
    deployment_id: str
    run_digest: bytes
    charging_rule: ChargingRule
    constants: CorpusSettings | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the deployment's tokens."""
        return Guarantee.REALISED_WORLD if self.constants is None else Guarantee.CORPUS

    @property
    def has_rule(self) -> bool:
        """True if the ledger keeps the charging rule, and what each token could have cost; else it is `fixed`."""
        return self.schema >= schema.FIRST_VERSION_WITH_RULE

    def to_bytes(self) -> bytes:
        """The header in the one encoding of its schema."""
        common = _HEADER.pack(_MAGIC, self.schema, bytes.fromhex(self.deployment_id), self.run_digest)
        if not self.has_rule:
            return common
        common += _RULE.pack(self.charging_rule.encode())
        return common if self.constants is None else common + _constants_to_bytes(self.constants)


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """A deployment's state together with the head of the chain of releases that led to it."""

    state: DeploymentState
    head: bytes

    @property
    def totals(self) -> Totals:
        """The totals that the chain must add up to."""
        return Totals(self.state.tokens_released, self.state.spent_units, self.head)


def run_digest(run_id: str) -> bytes:
    """The 32 bytes that name a run in its ledger."""
    return hashlib.sha256(run_id.encode()).digest()


def seal(key: StateKey, header: Header, checkpoint: LedgerCheckpoint) -> bytes:
    """Encrypt and authenticate a checkpoint."""
    state = checkpoint.state
    spent, cap = state.spent_units.to_bytes(16, "big"), (state.cap_units or 0).to_bytes(16, "big")
    account = (spent, state.cap_units is not None, cap, checkpoint.head)
    if isinstance(state, CorpusState):
        plaintext = _CORPUS_COUNTS.pack(state.tokens_released, *account)
    else:
        counts = _COUNTS.pack(state.secret, state.tokens_released, state.dissenting_steps, *account)
        plaintext = counts + state.log_posterior.astype(_POSTERIOR_TYPE).tobytes()
    return key.seal(plaintext, header.to_bytes())


def unseal(key: StateKey, header: Header, sealed: bytes) -> LedgerCheckpoint:
    """Recover a checkpoint.

    Raises:
        DeploymentStateError: the key is another one, or the bytes or the header were altered.
    """
    try:
        plaintext = key.unseal(sealed, header.to_bytes())
    except DeploymentStateError:
        raise DeploymentStateError(
            "the sealed state of the ledger does not open: the key is not the one it was sealed with, or the state was "
            "altered. Restore the key and the ledger; nothing is released until both fit"
        ) from None
    if header.constants is not None:
        tokens_released, spent, has_cap, cap, head = _CORPUS_COUNTS.unpack(plaintext)
        cap_units = int.from_bytes(cap, "big") if has_cap else None
        corpus_state = CorpusState(header.constants, int.from_bytes(spent, "big"), cap_units, tokens_released)
        return LedgerCheckpoint(corpus_state, head)
    secret, tokens_released, dissenting_steps, spent, has_cap, cap, head = _COUNTS.unpack_from(plaintext)
    state = CuratorState(
        secret=secret,
        log_posterior=np.frombuffer(plaintext, _POSTERIOR_TYPE, offset=_COUNTS.size).astype(np.float64),
        spent_units=int.from_bytes(spent, "big"),
        cap_units=int.from_bytes(cap, "big") if has_cap else None,
        tokens_released=tokens_released,
        dissenting_steps=dissenting_steps,
        charging_rule=header.charging_rule,
    )
    return LedgerCheckpoint(state, head)


def realised_world_state(state: DeploymentState, place: object) -> CuratorState:
    """Return the state of a realised-world deployment.

    Raises:
        DeploymentStateError: it is one of a corpus deployment; the message names its place.
    """
    if isinstance(state, CuratorState):
        return state
    raise DeploymentStateError(
        f"the deployment in {place} has the guarantee {Guarantee.CORPUS}, not {Guarantee.REALISED_WORLD}"
    )


def corpus_state(state: DeploymentState, place: object) -> CorpusState:
    """Return the state of a corpus deployment.

    Raises:
        DeploymentStateError: it is one of a realised-world deployment; the message names its place.
    """
    if isinstance(state, CorpusState):
        return state
    raise DeploymentStateError(
        f"the deployment in {place} has the guarantee {Guarantee.REALISED_WORLD}, not {Guarantee.CORPUS}"
    )


def _constants_to_bytes(constants: CorpusSettings) -> bytes:
    return _CONSTANTS.pack(
        Guarantee.CORPUS.encode(),
        constants.clip,
        constants.gain,
        constants.temperature,
        constants.num_candidates,
        constants.num_worlds,
        constants.relation.encode(),
    )
