"""The paper's numbers, their places in our results, and reasons for which the two may differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]
"""The `results` of a result file."""

AGREES, DIFFERS, TOO_UNCERTAIN = "agrees", "differs", "too uncertain"
WIDEST_BAND = 0.15
"""A wider interval of a share says nothing: almost every number of the paper lies in it."""
_ROUNDING = 0.005
"""The ends of the paper's ranges are given to whole percent."""
SMALLEST, PAPER_K = 2.0**-32, 200
_SETTING = "another base, corpus and length of texts, and how hard worlds are trained decides it (sweep)"


@dataclass(frozen=True)
class Ours:
    """Our number.

    Attributes:
        text: as it is shown.
        low, high: the range that it may lie in: its interval.
        last: of a range, the interval of its upper end; `low` and `high` are then of its lower end.
        is_share: whether it is a share, whose interval can be too wide to say anything.
    """

    text: str
    low: float
    high: float
    last: tuple[float, float] | None = None
    is_share: bool = False

    @property
    def widest_band(self) -> float:
        """The width of its interval, of a range the wider one."""
        return max(high - low for low, high in self.ends)

    @property
    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The intervals of both ends; of a single number twice the same."""
        return (self.low, self.high), self.last or (self.low, self.high)


@dataclass(frozen=True)
class Comparison:
    """One number of the paper.

    Attributes:
        experiment: whose results hold ours.
        quantity: what it is.
        paper: as the paper has it.
        low, high: the range that the paper's rounding leaves; of a range of the paper's, its two ends.
        ours: finds ours; None where the results have no such row.
        because: said where the two do not agree.
        is_range: whether the paper gives a range, which is compared with ours end by end.
    """

    experiment: str
    quantity: str
    paper: str
    low: float
    high: float
    ours: Callable[[Results], Ours | None]
    because: str
    is_range: bool = False

    def verdict(self, ours: Ours) -> str:
        """`AGREES` where intervals meet, of ranges at both ends; `TOO_UNCERTAIN` where ours is too wide to say."""
        if ours.is_share and ours.widest_band > WIDEST_BAND:
            return TOO_UNCERTAIN
        wanted = [(self.low, self.high)] * 2
        if self.is_range:
            wanted = [(end - _ROUNDING, end + _ROUNDING) for end in (self.low, self.high)]
        meets = [mine[0] <= high and mine[1] >= low for mine, (low, high) in zip(ours.ends, wanted, strict=True)]
        return AGREES if all(meets) else DIFFERS

    def explain(self, ours: Ours) -> str:
        """Say the verdict, and of what differs in which direction it does and why that may be."""
        verdict = self.verdict(ours)
        if verdict != DIFFERS:
            return verdict
        middle, papers = (ours.low + ours.ends[1][1]) / 2, (self.low + self.high) / 2
        return f"{'higher' if middle > papers else 'lower'}: {self.because}"


def interval(value: float, error: float | None) -> tuple[float, float]:
    """About 95 %, from a standard error."""
    reach = 2.0 * (error or 0.0)
    return value - reach, value + reach


def percent(mean: Mapping[str, Any] | None) -> Ours | None:
    """A mean as a percentage with its standard error."""
    if mean is None:
        return None
    value, error = mean["value"], mean["standard_error"]
    text = f"{100 * value:.1f} %" + ("" if error is None else f" ± {100 * error:.1f}")
    return Ours(text, *interval(value, error), is_share=True)


def spread(means: Iterable[Mapping[str, Any] | None]) -> Ours | None:
    """Several means as the range of their values with the largest standard error; each end has its own interval."""
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    values = [mean["value"] for mean in known]
    smallest, largest = (end(known, key=lambda mean: mean["value"]) for end in (min, max))
    first, last = (interval(mean["value"], mean.get("standard_error")) for mean in (smallest, largest))
    errors = [mean["standard_error"] for mean in known if mean.get("standard_error") is not None]
    text = f"{100 * min(values):.1f} to {100 * max(values):.1f} %" + (f" ± {100 * max(errors):.1f}" if errors else "")
    return Ours(text, *first, last=last, is_share=True)


def _first(rows: Iterable[Mapping[str, Any]], **wanted: object) -> Mapping[str, Any]:
    """The row that has all the wanted values, or an empty one."""
    return next((row for row in rows if all(row.get(name) == value for name, value in wanted.items())), {})


def _stability(name: str) -> Callable[[Results], Ours | None]:
    return lambda results: percent(_first(results["stability"]["rows"], num_candidates=PAPER_K).get(name))


def _utility(decoder: str, name: str, *budgets: float, method: str = "gaussian") -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        rows = _first(results["utility"], decoder=decoder)["rows"]
        found = [_first(rows, method=method, step_budget=budget).get(name) for budget in budgets]
        return percent(found[0]) if len(found) == 1 else spread(found)

    return ours


def _of_full_gain(decoder: str, method: str) -> Callable[[Results], Ours | None]:
    """The share of the full-data gain at the smallest budget.

    Results that lack it get it from their accuracies; its error is then bounded from above by the errors of the two
    shares of the noiseless gain, as if they were fully correlated in the worst direction.
    """

    def ours(results: Results) -> Ours | None:
        rows = _first(results["utility"], decoder=decoder)["rows"]
        row = _first(rows, method=method, step_budget=SMALLEST)
        if row.get("of_full_gain") is not None:
            return percent(row["of_full_gain"])
        public, full = _first(rows, method="public"), _first(rows, method="full-data")
        if not (row.get("kept") and full.get("kept")):
            return None
        at = public["accuracy"]["value"]
        share = (row["accuracy"]["value"] - at) / (full["accuracy"]["value"] - at)
        relative = sum(each["kept"]["standard_error"] / abs(each["kept"]["value"]) for each in (row, full))
        return percent({"value": share, "standard_error": abs(share) * relative})

    return ours


def _cost_in_errors(decoder: str) -> Callable[[Results], Ours | None]:
    """The accuracy that noise costs at the smallest budget, in standard errors of the accuracy."""

    def ours(results: Results) -> Ours | None:
        found = _first(results["utility"], decoder=decoder)
        row = _first(found["rows"], method="gaussian", step_budget=SMALLEST)
        if row.get("kept") is None:
            return None
        cost = (1 - row["kept"]["value"]) * found["gain"]["value"]
        in_errors = cost / row["accuracy"]["standard_error"]
        return Ours(f"{in_errors:.2f} ({100 * cost:.2f} points)", in_errors, in_errors)

    return ours


def _flatness(results: Results) -> Ours | None:
    rows = _first(results["utility"], decoder="gumbel")["rows"]
    kept = [_first(rows, method="gaussian", step_budget=budget).get("kept") for budget in (2.0**-24, SMALLEST)]
    if None in kept:
        return None
    first, last = (mean["value"] for mean in kept if mean is not None)
    change = last - first
    return Ours(f"{100 * change:+.1f} points", change, change)


def _composition(name: str, budget: float) -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        row = _first(results["composition"], decoder="greedy", mechanism="gaussian", step_budget=budget)
        found = row.get(name)
        if found is None:
            return None
        if "low" in found:
            return Ours(f"{100 * found['value']:.2f} %", found["low"], found["high"])
        return Ours(f"{100 * found['value']:.2f} %", *interval(found["value"], found["standard_error"]))

    return ours


def _leakage(name: str) -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        rows = [row for row in results["leakage"] if (row["mechanism"], row["decoder"]) == ("gaussian", "greedy")]
        return spread([row[name] for row in rows if row["step_budget"] <= 2.0**-16])

    return ours


def _quality(method: str, *budgets: float | None) -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        rows = results["quality"]["rows"]
        found = [_first(rows, method=method, step_budget=budget).get("repetition") for budget in budgets]
        known = [mean for mean in found if mean is not None]
        if not known:
            return None
        bands = [interval(mean["value"], mean["standard_error"]) for mean in known]
        text = " / ".join(f"{mean['value']:.3f}" for mean in known)
        return Ours(text, min(low for low, _ in bands), max(high for _, high in bands))

    return ours


def _canary(results: Results) -> Ours | None:
    row = _first(_first(results["studies"], decoder="greedy")["rows"], method="gaussian", step_budget=SMALLEST)
    membership = row.get("membership")
    if membership is None:
        return None
    found = membership["token_advantage"]
    return Ours(f"{found['value']:+.3f}", found["low"], found["high"])


def _emission(results: Results) -> Ours | None:
    row = _first(_first(results["studies"], decoder="greedy")["rows"], method="gaussian", step_budget=SMALLEST)
    membership = row.get("membership")
    return None if membership is None else spread([membership["tokens_with"], membership["tokens_without"]])


def _release_milliseconds(results: Results) -> Ours | None:
    milliseconds = [1000 * row["release_seconds"]["value"] for row in results["cost"]]
    return Ours(" / ".join(f"{value:.3f} ms" for value in milliseconds), min(milliseconds), max(milliseconds))


def _operations(which: int) -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        counts = list(dict.fromkeys(row["operations"][which]["operations"] for row in results["cost"]))
        return Ours(" / ".join(f"{count:.3g}" for count in counts), min(counts), max(counts))

    return ours


def _find_matched(method: str, reading: str | None) -> Callable[[Results], Ours | None]:
    return lambda results: spread(
        [row["of_own_ceiling"] for row in results["rows"] if (row["method"], row["reading"]) == (method, reading)]
    )


def _largest(method: str) -> Callable[[Results], Ours | None]:
    def ours(results: Results) -> Ours | None:
        shares = [row["of_own_ceiling"] for row in results["rows"] if row["method"] == method]
        known = [share for share in shares if share is not None]
        return percent(max(known, key=lambda share: share["value"])) if known else None

    return ours


_COUNTED = "m² d + d² over another vocabulary, and votes that differ more or less often"
_TEXTS = "few texts, so wide intervals, and another base: compare the rows of the public and the unprotected model"

COMPARISONS: Sequence[Comparison] = (
    Comparison("stability", "unanimous at k = 200, greedy", "83.4 %", 0.8335, 0.8345, _stability("greedy"), _SETTING),
    Comparison(
        "stability", "probability inside the top 200", "88.5 %", 0.8845, 0.8855, _stability("mass"),
        "another base and vocabulary, and other texts",
    ),
    Comparison(
        "utility", "share of the full-data gain at 2^-32, greedy", "74.3 %", 0.7425, 0.7435,
        _of_full_gain("greedy", "gaussian"), _SETTING,
    ),
    Comparison(
        "utility", "share of the full-data gain at 2^-32, Gumbel", "84.4 %", 0.8435, 0.8445,
        _of_full_gain("gumbel", "gaussian"), _SETTING,
    ),
    Comparison(
        "utility", "share of the noiseless gain at 2^-32, greedy", "", 0.0, 1.0,
        _utility("greedy", "kept", SMALLEST), "",
    ),
    Comparison(
        "utility", "share of the noiseless gain at 2^-32, Gumbel", "", 0.0, 1.0,
        _utility("gumbel", "kept", SMALLEST), "",
    ),
    Comparison(
        "utility", "accuracy that noise costs, in standard errors of the accuracy, greedy", "within 1", -1.0, 1.0,
        _cost_in_errors("greedy"), _SETTING,
    ),
    Comparison(
        "utility", "accuracy that noise costs, in standard errors of the accuracy, Gumbel", "within 1", -1.0, 1.0,
        _cost_in_errors("gumbel"), _SETTING,
    ),
    Comparison(
        "utility", "the mixture: share of the noiseless gain at 2^-32, greedy", "", 0.0, 1.0,
        _utility("greedy", "kept", SMALLEST, method="mixture"), "",
    ),
    Comparison(
        "utility", "the mixture: share of the noiseless gain at 2^-32, Gumbel", "", 0.0, 1.0,
        _utility("gumbel", "kept", SMALLEST, method="mixture"), "",
    ),
    Comparison(
        "utility", "change of the gain kept from 2^-24 to 2^-32, Gumbel", "none", -0.01, 0.01, _flatness,
        "the difference between two simulations is sampling error as well",
    ),
    Comparison(
        "utility", "flips on dissent from 2^-4 to 2^-32, greedy", "26 to 52 %", 0.26, 0.52,
        _utility("greedy", "flips", 2.0**-4, SMALLEST),
        "more than two distinct votes where worlds dissent make more flips", is_range=True,
    ),
    Comparison(
        "composition", "record named right at 2^-8, greedy", "near 50 %", 0.49, 0.52,
        _composition("membership", 2.0**-8),
        "4,096 tokens are charged 16 nats, more than the 4.85 that all worlds hold, and dissent lets most of it out",
    ),
    Comparison(
        "composition", "world named right at 2^-12, greedy", "1/128 = 0.78 %", 0.0078, 0.0079,
        _composition("world", 2.0**-12),
        "4,096 tokens are charged one nat, and dissent lets its own share of that out; the bound is 33.7 %",
    ),
    Comparison(
        "leakage", "share of the charge that is leaked, greedy, b up to 2^-16", "17.0 to 18.8 %", 0.170, 0.188,
        _leakage("share_of_charge"), "the share is the dissent rate, and worlds dissent at another rate here",
        is_range=True,
    ),
    Comparison(
        "leakage", "dissent rate, greedy", "16.6 %", 0.1655, 0.1665, _leakage("dissent"), _SETTING,
    ),
    Comparison(
        "quality", "rep-3 of private text", "0.053 / 0.050", 0.0495, 0.0535, _quality("gaussian", 2.0**-8, SMALLEST),
        _TEXTS,
    ),
    Comparison("quality", "rep-3 of human text", "0.047", 0.0465, 0.0475, _quality("human", None), _TEXTS),
    Comparison(
        "canary", "membership advantage at 2^-32", "about 0", -0.02, 0.02, _canary,
        "a few canaries and their coins leave this much to chance",
    ),
    Comparison(
        "canary", "canary tokens emitted, member and non-member worlds", "49 to 51 %", 0.49, 0.51, _emission,
        "one half is the rate where two votes are cast; more distinct votes, or agreement of all worlds, move it",
        is_range=True,
    ),
    Comparison(
        "cost", "a release, greedy / Gumbel", "0.223 ms", 0.2225, 0.2235, _release_milliseconds,
        "another machine, and unanimous releases counted in",
    ),
    Comparison(
        "cost", "multiplications over the vocabulary", "3.35e9", 3.345e9, 3.355e9, _operations(0), _COUNTED,
    ),
    Comparison(
        "cost", "multiplications over the distinct votes, greedy / Gumbel", "2.59e4", 2.585e4, 2.595e4, _operations(2),
        _COUNTED,
    ),
    Comparison(
        "matched", "PAC's share of its headroom, T = 10² to 10^6", "98 %", 0.975, 0.985,
        _find_matched("gaussian", None),
        "worlds that dissent more pay more, at every horizon alike",
    ),
    Comparison(
        "matched", "PMixED's largest share at any horizon and reading", "55.7 %", 0.0, 0.5575, _largest("pmixed"),
        "its experts are chosen and trained otherwise",
    ),
)  # fmt: skip
