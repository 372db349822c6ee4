"""The tables of a ledger, alike in SQLite and PostgreSQL. One database holds one deployment.

Formats. Times are whole seconds since 1970 (UTC). Charges are whole units of 2^-64, of a nat or, under the corpus
guarantee, of ρ; these pass 64 bits, so they are kept as 32 hexadecimal digits, and no database ever rounds or overflows
one. `state` and `deployment` have one row.

| table | holds | confidential |
|---|---|---|
| `deployment` | which deployment, run and schema this is; its guarantee; its charging rule or its constants | no |
| `state` | the sealed secret, posterior, account and head of the chain; the writer's epoch | sealed |
| `releases` | one row a released token, chained by digests; only appended to | `num_active`, charge: of the corpus |
| `api_keys` | who may ask: salted hashes, scopes, quotas, expiry | hashes only |

Versions. `SCHEMA_VERSION` covers the tables of the record (`deployment`, `state`, `releases`) and is sealed with it; a
release refuses a version above its own. A ledger keeps the version it was made with: its tables are never altered, and
what a later version added reads as what was so before.

| version | what it added | reads before that as |
|---|---|---|
| 1 | | |
| 2 | `deployment.charging_rule`, `releases.reserve_units` | the rule `fixed`, and as much reserved as charged |
| 2 | `deployment.guarantee` and the constants of a corpus deployment | the guarantee `realised-world` |

`api_keys` is not part of the record: a column that is added to it may be null,
reads as null where an older release made the table, and is added to that by the first command that writes keys.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
)
from sqlalchemy.exc import NoSuchTableError

SCHEMA_VERSION: Final = 2
FIRST_VERSION_WITH_RULE: Final = 2
RULE_LETTERS: Final = 16
NAME_LETTERS: Final = 16
UNIT_DIGITS: Final = 32
LARGEST_UNITS: Final = 16**UNIT_DIGITS - 1

metadata: Final = MetaData()

# SQLite numbers its rows by a column of exactly this type; in PostgreSQL it must have 64 bits.
_Long = BigInteger().with_variant(Integer, "sqlite")

deployment: Final = Table(
    "deployment",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("schema_version", Integer, nullable=False),
    Column("deployment_id", String(32), nullable=False),
    Column("run_digest", LargeBinary(32), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("charging_rule", String(RULE_LETTERS)),
    Column("guarantee", String(NAME_LETTERS)),
    Column("clip", Double),
    Column("gain", Double),
    Column("temperature", Double),
    Column("num_candidates", BigInteger),
    Column("num_worlds", BigInteger),
    Column("relation", String(NAME_LETTERS)),
)

state: Final = Table(
    "state",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1"), primary_key=True, autoincrement=False),
    Column("writer_epoch", BigInteger, nullable=False),
    Column("tokens_released", BigInteger, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
)

releases: Final = Table(
    "releases",
    metadata,
    Column("number", _Long, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("request", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("coin_key", LargeBinary(16)),
    Column("num_active", Integer, nullable=False),
    Column("charge_units", String(UNIT_DIGITS), nullable=False),
    Column("key_id", Text),
    Column("digest", LargeBinary(32), nullable=False),
    Column("reserve_units", String(UNIT_DIGITS)),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("salt", LargeBinary(16), nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("tokens_per_minute", BigInteger),
    Column("total_tokens", BigInteger),
    Column("created", BigInteger, nullable=False),
    Column("revoked", BigInteger),
    Column("expires", BigInteger),
)


def complete_keys(connection: Connection) -> None:
    """Create the table of keys, or give it the columns that it lacks; in a transaction that may write."""
    api_keys.create(connection, checkfirst=True)
    present = column_names(connection, api_keys)
    for column in api_keys.columns:
        if column.name not in present:
            kind = column.type.compile(connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {api_keys.name} ADD COLUMN {column.name} {kind}")


def release_columns(*, has_reserve: bool) -> list[Column[Any]]:
    """The columns of a release, with or without what it could have cost, in their order."""
    return [column for column in releases.columns if has_reserve or column is not releases.c.reserve_units]


def present_columns(connection: Connection, table: Table) -> list[Column[Any]]:
    """The columns of a table that a ledger has, in their order; none where there is no such table."""
    present = column_names(connection, table)
    return [column for column in table.columns if column.name in present]


def column_names(connection: Connection, table: Table) -> set[str]:
    """Names of the columns that a table of a ledger has; none where there is no such table."""
    try:
        return {column["name"] for column in inspect(connection).get_columns(table.name)}
    except NoSuchTableError:
        return set()


def units_as_text(units: int) -> str:
    """Return a non-negative number of units, at most `LARGEST_UNITS`, as 32 hexadecimal digits."""
    return f"{units:0{UNIT_DIGITS}x}"
