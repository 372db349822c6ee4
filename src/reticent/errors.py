"""Every exception a user can see, under one base class.

Each message names the offending thing and the remedy. The command line prints the message alone and exits with
`exit_code`; anything that is not a `ReticentError` is a defect and keeps its traceback.
"""


class ReticentError(Exception):
    """Base of all errors a user can cause or repair."""

    exit_code = 2


class InvalidValueError(ReticentError, ValueError):
    """A number, option or argument is outside its range."""


class CorpusError(ReticentError):
    """The private corpus is missing, empty, malformed or too small."""


class ModelError(ReticentError):
    """A base model cannot be found, read or batched."""


class TrainingError(ReticentError):
    """Training cannot continue: the loss is no longer a number."""


class RunDirectoryError(ReticentError):
    """A run directory is missing, half-built, damaged, from another base or from a newer schema."""


class AuditError(ReticentError):
    """The texts, target or attacks of an audit do not fit together, or nothing could be scored."""


class PartialAuditError(ReticentError):
    """An audit is done and written, without part of what was asked for."""

    exit_code = 3


class EndpointError(ReticentError):
    """A server does not answer, refuses, or answers something other than what was asked for."""


class OutputExistsError(ReticentError):
    """An output path is already taken."""


class StorageError(ReticentError):
    """Data could not be written; what was written before is intact."""


class DeploymentStateError(ReticentError):
    """A deployment's ledger cannot be opened or continued: altered, old, another run's, in use, or without its key."""


class BudgetExhaustedError(ReticentError):
    """The next release would take the deployment past its total budget."""


class InterruptedRunError(ReticentError):
    """Ctrl-C stopped long work; the message says what is kept and how to resume."""

    exit_code = 130
