"""Each subject is recognised, with at most the one line that the message proposes, and judged rightly."""

import json
import statistics
import subprocess
import sys

import pytest
import strangers_table as table
import torch

from attnspec._clauses import clauses
from attnspec._errors import TargetError
from attnspec.conformance.local import LocalSession
from attnspec.conformance.profiles import Profile
from attnspec.conformance.runner import run_clause
from attnspec.declaration import Declaration
from attnspec.loading import load_target
from attnspec.recognition import as_toml, recognise

SMALL = Profile("quick", rows=4, random=0, seconds=5.0, shrink=0)


@pytest.fixture(autouse=True)
def _beside_the_subjects(monkeypatch):
    """The subjects import each other, as files in one folder do; module names do not outlive a test."""
    monkeypatch.syspath_prepend(str(table.SUBJECTS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(table.SUBJECTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def name_of(row):
    return (
        f"{row.target}{'[' + ' '.join(line.split('=')[0] for line in row.lines) + ']' if row.lines else ''}"
    )


def verdict(row):
    """Recognise a subject and run the clauses of its row."""
    found = recognise(load_target(row.text), Declaration.from_pairs(list(row.lines)))
    said = [str(finding) for finding in found.findings]
    for part in row.says:
        assert any(part in finding for finding in said), f"{part!r} is not said; found: {said}"
    open_questions = {question.clause for question in found.questions}
    assert open_questions == set(row.asks), f"asked {open_questions}"
    results = {name: run_clause(clauses()[name], found, SMALL) for name in row.checks}
    return found, {name: result.status for name, result in results.items()}, results


def compare(row):
    _, statuses, results = verdict(row)
    for name, status in statuses.items():
        wanted = (
            {"question"}
            if name in row.asks
            else {"failed"}
            if name in row.fails
            else {"passed", "not applicable"}
        )
        failure = results[name].failure
        assert status in wanted, f"{name}: {status}, {failure.what if failure else results[name].reason}"
    assert any(status != "not applicable" for status in statuses.values())


@pytest.mark.parametrize("row", table.ALL, ids=name_of)
def test_subject_gets_the_right_verdict(row):
    compare(row)


@pytest.mark.parametrize("row", table.TRANSFORMERS, ids=name_of)
def test_transformers_get_the_right_verdict(row):
    pytest.importorskip("transformers")
    compare(row)


def test_enough_subjects_need_at_most_the_median_of_one_line():
    forms = {row.target for row in table.OWN}
    lines = [min(len(row.lines) for row in table.ALL if row.target == target) for target in forms]
    assert len(forms) >= 30
    assert statistics.median(lines) <= 1
    assert sum(count <= 1 for count in lines) >= 30


def test_no_full_verdict_misses_a_mistake_or_is_of_a_row_that_is_gone():
    """`full_run.json` is what `full_run.py` wrote."""
    written = json.loads((table.SUBJECTS.parent / "full_run.json").read_text(encoding="utf-8"))
    rows = {(row.target, *row.lines): row for row in table.ALL}
    for verdict in written["subjects"]:
        row = rows[verdict["target"], *verdict["lines"]]
        assert not verdict.get("missed"), row
        assert set(row.asks) == set(verdict["asks"]), row
        assert {
            name for name in row.fails if name not in (*verdict["fails"], *verdict["fails_should"])
        } == set()
    assert written["summary"]["subjects"] == len(written["subjects"])


FEW = (
    "construction:CausalSelfAttention",
    "blocks:PreNorm",
    "blocks:Rotated",
    "masks:TwoMasks",
    "cores:registered",
    "blocks:RotaryInside",
    "chosen:Causal",
    "chosen:Window",
    "scripts:GlobalWidth",
)


@pytest.mark.parametrize("row", [row for row in table.OWN if row.target in FEW], ids=name_of)
def test_what_is_written_down_is_read_back_the_same(row, tmp_path):
    found = recognise(load_target(row.text), Declaration())
    (tmp_path / "attnspec.toml").write_text(as_toml(found), encoding="utf-8")
    from attnspec.declaration import read_declarations

    again = recognise(load_target(row.text), read_declarations(tmp_path)[row.text])
    assert again.declaration.weights == found.declaration.weights
    assert again.space == found.space


def test_the_script_of_a_failure_runs_where_the_file_imports_its_neighbours(tmp_path):
    session = LocalSession(f"{table.SUBJECTS}/chosen.py:CausalLate", Declaration(), scripts=str(tmp_path))
    session.recognise()
    result = session.run("causal.value")
    assert result.failure is not None
    done = subprocess.run(
        [sys.executable, result.failure.script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "expected there" in done.stdout, done.stderr


class TestKnownTruths:
    def test_multihead_attention_gives_nan_or_numbers_by_mode(self):
        layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        x, padded = torch.randn(1, 3, 8), torch.ones(1, 3, dtype=torch.bool)
        kinds = {
            bool(layer(x, x, x, key_padding_mask=padded, need_weights=need)[0].isnan().any())
            for need in (True, False)
        }
        assert kinds == {True, False}
        found = recognise(load_target("torch.nn:MultiheadAttention"), Declaration())
        assert run_clause(clauses()["state.weights_flag"], found, SMALL).status == "failed"


class TestMessages:
    def test_a_constructor_that_is_not_understood_gets_an_example_of_its_own(self):
        with pytest.raises(
            Exception, match="--new 'Opaque\\(width_of_everything=d_model, how_many=heads\\)'"
        ):
            recognise(load_target(f"{table.SUBJECTS}/construction.py:Opaque"), Declaration())

    def test_a_function_that_is_not_understood_gets_an_example_of_its_own(self):
        with pytest.raises(Exception, match="--call 'f\\(a=query, b=key, c=value\\)'"):
            recognise(load_target(f"{table.SUBJECTS}/cores.py:strange_names"), Declaration())

    def test_a_function_over_weights_is_told_where_they_go(self):
        with pytest.raises(Exception, match="goes into a module class that holds the weights"):
            recognise(load_target(f"{table.SUBJECTS}/cores.py:over_weights"), Declaration())

    def test_an_instance_without_a_number_of_heads_gets_one_that_divides_its_width(self):
        with pytest.raises(Exception, match=r"--declare sizes\.heads=4"):
            recognise(load_target(f"{table.SUBJECTS}/construction.py:headless_instance"), Declaration())

    def test_a_mask_that_the_constructor_cannot_be_without_gets_one_that_hides_nothing(self):
        with pytest.raises(Exception, match=r"mask=torch\.ones\(max_len, max_len, dtype=torch\.bool\) if"):
            recognise(load_target(f"{table.SUBJECTS}/chosen.py:MaskedAlways"), Declaration())

    def test_unknown_weights_name_the_parameters_and_the_argument(self):
        found = recognise(load_target(f"{table.SUBJECTS}/weights.py:Unknowable"), Declaration())
        said = next(f.value for f in found.findings if f.topic == "weights")
        assert "--weights W_q=enter.0.0.weight" in said
        assert "the clauses that need no weights are run" in said
        result = run_clause(clauses()["gradient.parameters"], found, SMALL)
        assert "not recognised" in result.reason

    def test_weights_of_unknown_names_are_told_by_gradients_in_wrong_code_too(self):
        found = recognise(load_target(f"{table.SUBJECTS}/weights.py:OtherLanguageUnscaled"), Declaration())
        assert [f.value for f in found.findings if f.topic == "weights"] == [
            "frage schluessel wert ausgang with bias"
        ]
        result = run_clause(clauses()["scale.default"], found, SMALL)
        assert result.failure.what == "the default scale is not d_k ** -0.5"

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("packed", "--call 'f(torch.stack((query, key, value), 2))' --declare 'layout="),
            ("half_packed", "--call 'f(q=query, kv=torch.stack((key, value), 2))'"),
            ("over_matrices", "\n  a function over an input and its weights goes into a module class"),
            ("make", "--new 'make(how_wide=d_model, how_many=heads, kind=None)'"),
            ("of_one", "\n  its parameters do not tell where query, key and value go"),
            ("PlainLayer", "\n  a class that is no torch.nn.Module holds weights that nobody can set"),
            ("PlainCore", "--call 'f()(query=query, key=key, value=value)'"),
            ("A_NUMBER", "\n  point at a function over query, key and value, or at a module class"),
            ("NeedsKind", "--new 'NeedsKind(d_model=d_model, num_heads=heads, kind=Kind.FULL)'"),
            (
                "NeedsParts",
                "in place of ...: --new 'NeedsParts(d_model=d_model, num_heads=heads, q_proj=...)'",
            ),
            ("NestedConfig", "in place of ...: --new 'NestedConfig(cfg=SimpleNamespace(model=...))'"),
        ],
    )
    def test_what_is_suggested_could_work(self, name, advice):
        with pytest.raises(TargetError) as caught:
            recognise(load_target(f"{table.SUBJECTS}/arguments.py:{name}"), Declaration())
        assert advice in str(caught.value)

    def test_a_plain_class_is_not_told_to_do_what_was_refused(self):
        declared = Declaration(new="PlainLayer(d_model, heads)")
        with pytest.raises(TargetError, match=r"a class that is no torch\.nn\.Module"):
            recognise(load_target(f"{table.SUBJECTS}/arguments.py:PlainLayer"), declared)
