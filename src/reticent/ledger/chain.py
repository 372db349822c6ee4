"""The hash chain over releases.

Guarantee: two ledgers with the same head hold the same releases, field by field and in the same order, unless SHA-256
is broken. The head, the number of releases and their total are sealed with the deployment's state in the transaction
that appends to the chain, so that rows cannot be edited, dropped, inserted or cut off at the end unnoticed, not even by
someone who computes the digests anew.

A digest covers the digest before it and every other column of its row, in one fixed encoding; what a row could have
cost comes last, where the ledger's schema keeps it. `num_active` has few possible values and could be guessed from a
digest: whoever must not see it must not see digests either.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reticent.errors import DeploymentStateError

_LABEL: Final = b"reticent release chain v1"
# number, time, step, num_active, charge units, lengths of coin key, request and key id (-1 where there is none)
_FIXED: Final = struct.Struct(">QQQL16siii")


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a chain: releases, units charged, and the digest of the last row."""

    releases: int
    units: int
    head: bytes


def first_digest(deployment_id: str, run_digest: bytes) -> bytes:
    """The digest before the first release of a deployment."""
    return hashlib.sha256(_LABEL + bytes.fromhex(deployment_id) + run_digest).digest()


def digest(
    previous: bytes,
    number: int,
    time: int,
    request: str,
    step: int,
    coin_key: bytes | None,
    num_active: int,
    charge_units: str,
    key_id: str | None,
    reserve_units: str | None = None,
) -> bytes:
    """The digest of the row with these columns that follows the digest `previous`, 32 bytes.

    Raises:
        ValueError, TypeError, OverflowError, AttributeError, struct.error: a value that no release has.
    """
    request_bytes = request.encode()
    reserve = b"" if reserve_units is None else int(reserve_units, 16).to_bytes(16, "big")
    key_bytes = b"" if key_id is None else key_id.encode()
    fixed = _FIXED.pack(
        number,
        time,
        step,
        num_active,
        int(charge_units, 16).to_bytes(16, "big"),
        -1 if coin_key is None else len(coin_key),
        len(request_bytes),
        -1 if key_id is None else len(key_bytes),
    )
    return hashlib.sha256(b"".join((previous, fixed, coin_key or b"", request_bytes, key_bytes, reserve))).digest()


def replay(rows: Iterable[Sequence[Any]], start: bytes) -> Totals:
    """Follow a chain row by row, in order of their numbers, holding one row at a time.

    Args:
        rows: the columns that `digest` takes, in its order, the stored digest before the last one.
        start: the digest before the first.

    Raises:
        DeploymentStateError: a row is missing, was added, or does not fit its digest; the first such row is named.
    """
    head, units, expected = start, 0, 1
    for number, time, request, step, coin_key, num_active, charge_units, key_id, stored, *reserve in rows:
        if number < expected:
            raise DeploymentStateError(f"release {number} is no release of this ledger: the row was added")
        if number > expected:
            missing = f"release {expected}" if number == expected + 1 else f"releases {expected} to {number - 1}"
            raise DeploymentStateError(f"{missing} missing from the ledger: rows were deleted from its middle")
        try:
            head = digest(head, number, time, request, step, coin_key, num_active, charge_units, key_id, *reserve)
            units += int(charge_units, 16)
        except (ValueError, TypeError, OverflowError, AttributeError, struct.error):
            head = b""
        if head != stored:
            raise DeploymentStateError(f"release {number} does not fit its digest: the row was edited")
        expected += 1
    return Totals(expected - 1, units, head)


def require_sealed(found: Totals, sealed: Totals) -> None:
    """Compare what a chain adds up to with what was sealed when it was last extended.

    Raises:
        DeploymentStateError: rows were cut off or added at the end, or the chain was computed anew.
    """
    if found.releases < sealed.releases:
        raise DeploymentStateError(
            f"the ledger ends with release {found.releases}, but {sealed.releases} were made: rows were cut off its end"
        )
    if found.releases > sealed.releases:
        raise DeploymentStateError(
            f"the ledger has {found.releases} releases, but only {sealed.releases} were made: rows were added"
        )
    if found.head != sealed.head:
        raise DeploymentStateError(
            "the last digest of the ledger is not the sealed one: releases were rewritten and their digests made anew"
        )
    if found.units != sealed.units:
        raise DeploymentStateError(
            f"the charges in the ledger add up to {found.units} units of 2^-64, but {sealed.units} are sealed"
        )
