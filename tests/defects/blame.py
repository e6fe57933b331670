"""Trace every defect that has a place and show which stage and line the trace blames.

    python tests/defects/blame.py                  all defects with a place; writes blame.json
    python tests/defects/blame.py --contract layer one contract alone; nothing is written
    python tests/defects/blame.py --only NAME ...  some defects alone; nothing is written

A defect is counted where it shows in the numbers of one call: new code, called once on the inputs that
its clause failed with, gives another output than the oracle by more than the suite allows. What shows
only over several calls, in a gradient, a dtype, a parameter or at random leaves no wrong number in a
forward pass to point at; it is left out, with that reason. The trace has no say in who is counted.
"""

import argparse
import inspect
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from attnspec import oracle  # noqa: E402
from attnspec._clauses import clauses  # noqa: E402
from attnspec._errors import DeclarationError  # noqa: E402
from attnspec._inputs import LayerInputs  # noqa: E402
from attnspec.conformance.bound import core_bound  # noqa: E402
from attnspec.conformance.bound_layer import layer_bound  # noqa: E402
from attnspec.conformance.cases import Case  # noqa: E402
from attnspec.conformance.core_view import CoreView  # noqa: E402
from attnspec.conformance.failures import NotApplicable, SubjectError, Violation  # noqa: E402
from attnspec.conformance.judge import require_within, roundoffs_for  # noqa: E402
from attnspec.conformance.runner import bindings, missing_need, run_check  # noqa: E402
from attnspec.trace.departure import departure_of  # noqa: E402
from defects.bank import Defect, bank  # noqa: E402
from defects.kill_table import subject_of, unshrunk  # noqa: E402
from right.bank import Right  # noqa: E402
from right.bank import bank as right_bank  # noqa: E402
from right.check import recognised  # noqa: E402

RESULTS = HERE / "blame.json"
CONTRACTS = ("layer", "core")
NEVER_FAILS = "none of its clauses fails"
ASKED = "recognition asks about it before anything is run"
RIGHT_IN_ONE_CALL = "the output of one call is right"
RAISES = "the call raises, and the exception has its own line"
REFUSED = "the oracle refuses these inputs: nothing to compare with"

# Places that are one row of the contract, or that no value tells apart, each with its reason.
SAME: dict[str, dict[frozenset[str], str]] = {
    "layer": {
        frozenset(("visible_positions", "mask_scores")): "the contract's row `mask` is made of these two",
    },
    "core": {
        frozenset(("visible_positions", "mask_scores")): "the contract's row `mask` is made of these two",
        frozenset(("merge_heads", "aggregate_values")): "a core has no row behind the mix: what it does to"
        " the heads of its result it does to the mix",
    },
}


# What right implementations are traced with, where they take it.
SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 4, "q_len": 5, "kv_len": 5, "d_k": 6, "d_v": 6}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"mask": "random"},
    {"causal": True},
    {"kv_heads": 2, "kv_len": 7, "mask": "padding", "mask_axes": "bk"},
    {"mask": "nothing", "values": "integers"},
    {"bias": "bhqk", "mask": "sparse"},
    {"softcap": 5.0, "bias": "qk", "scale": 0.3},
    {"window": (2, 1), "causal": True, "kv_len": 9},
    {"dtype": "float16", "mask": "random", "values": "outlier"},
    {"dtype": "bfloat16", "causal": True},
    {"sources": "memory", "kv_len": 7},
    {"sources": "separate", "layout": "transposed", "projection_bias": False},
    {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1, "mask": "all"},
)


def failures(
    defect: Defect, recognition: Any, profiles: tuple[str, ...] = ("quick", "default")
) -> Iterator[tuple[str, Any, Case, Any]]:
    """Yield each failure of the clauses that name a defect: clause, subject, case, inputs where known."""
    for name in defect.clauses:
        clause = clauses()[name]
        for chosen in profiles:
            found = None
            for check, subject in bindings(clause, recognition):
                if missing_need(clause, subject.space, recognition.absent) is None:
                    _, found, _ = run_check(check, subject, unshrunk(chosen), start=1)
                if found is not None:
                    yield name, subject, found[0], getattr(found[1], "inputs", None)
                    break
            if found is not None:
                break


def shows(subject: Any, case: Case, inputs: Any) -> str:
    """Return why a failure is not in the numbers of one call; empty if it is."""
    layer = hasattr(subject, "layer_inputs")
    try:
        given = inputs if inputs is not None else subject.layer_inputs(case) if layer else case.core_inputs()
        exact = oracle.layer(given) if isinstance(given, LayerInputs) else oracle.core(given)
        bound = layer_bound if isinstance(given, LayerInputs) else core_bound
        allowed = bound(given, exact, roundoffs_for(subject, given.query.dtype))
    except NotApplicable:
        return RIGHT_IN_ONE_CALL
    except (ValueError, TypeError):
        return REFUSED
    try:
        output = (subject.run_layer if isinstance(given, LayerInputs) else subject.run)(given).output
        require_within(output, exact.output, allowed, what="output")
    except Violation:
        return ""
    except (SubjectError, DeclarationError):
        return RAISES
    except NotApplicable:
        pass
    return RIGHT_IN_ONE_CALL


def judge(name: str, *profiles: str) -> dict[str, Any]:
    """Return what the trace says about one defect; profiles say how hard a failing case is looked for."""
    torch.set_num_threads(1)
    defect = bank()[name]
    row: dict[str, Any] = {"contract": defect.contract, "place": defect.place, "verdict": "excluded"}
    recognition = subject_of(defect)
    asked = {question.clause for question in recognition.questions}
    reason = ASKED if asked & set(defect.clauses) else NEVER_FAILS
    for clause, subject, case, inputs in failures(defect, recognition, profiles or ("quick", "default")):
        fresh = _renewed(defect, recognition)
        view = subject.space.contract != fresh.space.contract
        reason = shows(CoreView(fresh.subject) if view else fresh.subject, case, inputs)
        if not reason:
            return (
                row | {"clause": clause, "case": case.describe()} | blamed(defect, recognition, case, inputs)
            )
    return row | {"reason": reason}


def _renewed(defect: Defect, recognition: Any) -> Any:
    """Return the defect as if never called; a layer is constructed for each call anyway."""
    return recognition if defect.contract == "layer" else subject_of(defect)


def blamed(defect: Defect, recognition: Any, case: Case, inputs: Any) -> dict[str, Any]:
    """Return the stage and the line that the trace names for a failing case."""
    found = departure_of(_renewed(defect, recognition), case, inputs)
    if found is None:
        return {"stage": None, "verdict": "no line"}
    same = found.stage == defect.place or frozenset((found.stage, defect.place)) in SAME[defect.contract]
    lines, first = inspect.getsourcelines(type_of(defect))
    inside = Path(found.file).name == Path(inspect.getfile(type_of(defect))).name and any(
        first <= line < first + len(lines) for line in (found.line, *found.callers)
    )
    return {
        "stage": found.stage,
        "verdict": "right" if same else "other",
        "line": f"{Path(found.file).name}:{found.line}" if found.file else None,
        "inside": inside,
        "why": found.text,
    }


def blames(found: Right, *, start: int = 0, step: int = 1) -> list[str]:
    """Return what the trace holds against a right implementation: every so-many-th case, from `start` on."""
    recognition = recognised(found)
    said = []
    for number, options in enumerate(OPTIONS):
        case = recognition.space.fit(Case(**SIZES | options, seed=number))
        if number % step == start % step and case is not None:
            departure = departure_of(recognition, case)
            if departure is not None:
                said.append(f"{found.name}: {departure.text} ({case.describe()})")
    return said


def blames_by_name(name: str) -> list[str]:
    """Return what the trace holds against one of the right implementations."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return blames(right_bank()[name])


def type_of(defect: Defect) -> type:
    """Return the class of a defect."""
    found: type = type(defect.target) if defect.contract == "core" else defect.target
    return found


def placed(contracts: Iterable[str] = CONTRACTS) -> dict[str, Defect]:
    """Return the defects that have a place."""
    return {n: d for n, d in bank().items() if d.place and d.contract in contracts}


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Count the verdicts of each contract, and the reasons of those that are not counted."""
    found = {}
    for contract in CONTRACTS:
        mine = [r for r in rows.values() if r["contract"] == contract]
        verdicts = Counter(r["verdict"] for r in mine)
        counted = len(mine) - verdicts["excluded"]
        found[contract] = {
            "with_a_place": len(mine),
            "counted": counted,
            **{v.replace(" ", "_"): verdicts[v] for v in ("right", "other", "no line")},
            "line_inside_the_defect": sum(bool(r.get("inside")) for r in mine),
            "share_right": round(verdicts["right"] / counted, 3) if counted else None,
            "excluded": dict(Counter(r["reason"] for r in mine if r["verdict"] == "excluded")),
        }
    return found


def parse(arguments: Iterable[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--contract", choices=CONTRACTS, help="one contract alone")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some defects, or all of a family")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    return parser.parse_args(arguments)


def main(arguments: Iterable[str] | None = None) -> int:
    """Measure; return the exit status."""
    asked, began = parse(arguments), time.perf_counter()
    names = list(placed((asked.contract,) if asked.contract else CONTRACTS))
    if asked.only:
        names = [n for n in names if n in asked.only or bank()[n].family in asked.only]
    with ProcessPoolExecutor(asked.jobs) as pool:
        rows = dict(zip(names, pool.map(judge, names), strict=True))
        whole = not asked.only and not asked.contract
        held = list(pool.map(blames_by_name, right_bank() if whole else ()))
    against = [said for found in held for said in found]
    for name, row in rows.items():
        if row["verdict"] in ("other", "no line"):
            said = f"{row['place']} -> {row['stage']} ({row['clause']}: {row['case']})"
            print(f"{row['verdict']:8} {name}: {said}")
    print(json.dumps(summary(rows), indent=1))
    print(f"{time.perf_counter() - began:.0f} s")
    for said in against:
        print(f"a right implementation is blamed: {said}")
    if whole:
        data = {
            "torch": torch.__version__,
            "summary": summary(rows),
            "right": {"implementations": len(right_bank()), "cases": len(OPTIONS), "blamed": against},
            "same": {
                c: {" = ".join(sorted(p)): why for p, why in pairs.items()} for c, pairs in SAME.items()
            },
            "defects": rows,
        }
        RESULTS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main())
