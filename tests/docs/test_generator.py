"""The generator: the gallery, the translations, the parts that must not go stale."""

from pathlib import Path

import pytest
from _build import documents, mistake_code, mistake_parts, reference_pages, stage_parts, translations, words
from _build.site import DOCS, Output, cell, fence, prose

import attnspec
from attnspec._axes import AXES
from attnspec._table import STAGES


def test_translated_pages_have_the_structure_of_their_originals() -> None:
    assert len(translations.pairs()) >= 3
    assert translations.differences() == []


@pytest.mark.parametrize(
    ("original", "translated", "expected"),
    [
        ("# A\n## B { #b }\n", "# 甲\n", "lacks 'heading 2 b'"),
        ("# A\n## B { #b }\n", "# 甲\n## 乙 { #c }\n", "element 2 is 'heading 2 c'"),
        ("# A\n", "# 甲\n- 多\n", "has more: 'item'"),
        ('--8<-- "en/x.md"\n', '--8<-- "zh/y.md"\n', "part LANGUAGE/y.md"),
        ("```console\na b\n```\n", "```console\na c\n```\n", "code a c"),
    ],
)
def test_translation_that_falls_behind_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: str, translated: str, expected: str
) -> None:
    (tmp_path / "zh").mkdir()
    (tmp_path / "page.md").write_text(original, encoding="utf-8")
    (tmp_path / "zh" / "page.md").write_text(translated, encoding="utf-8")
    monkeypatch.setattr(translations, "DOCS", tmp_path)
    assert expected in translations.differences()[0]
    with pytest.raises(SystemExit, match="fallen behind"):
        translations.check()


def test_words_exist_in_both_languages() -> None:
    found = words.check_words(set(STAGES), {a.name for a in AXES}, {s.path for s in STAGES.values()})
    assert found == []
    assert "stages lacks new_stage" in " ".join(words.check_words({*STAGES, "new_stage"}, set(), set()))


def test_gallery_is_complete() -> None:
    assert mistake_parts.missing_words() == []
    assert len(mistake_parts.gallery()) >= 20


@pytest.mark.parametrize("mistake", mistake_parts.gallery(), ids=lambda m: m.id)
def test_gallery_file_names_clauses_and_has_a_right_line_for_each_wrong_one(
    mistake: mistake_parts.Mistake,
) -> None:
    assert all(name in attnspec.clauses() for name in mistake.clause)
    assert mistake.code.shown != mistake.code.mended
    assert "# wrong" not in mistake.code.shown + mistake.code.mended
    assert "# right" not in mistake.code.shown + mistake.code.mended
    compile(mistake.code.shown, mistake.id, "exec")
    compile(mistake.code.mended, mistake.id, "exec")


def test_mended_gallery_holds_what_the_mistakes_break() -> None:
    # That the mistakes themselves are caught, the build holds: it shows what is said about them.
    for mistake, result in zip(mistake_parts.gallery(), mistake_parts.run(mended=True), strict=True):
        assert [r["status"] for r in result["results"]] == ["passed"] * len(mistake.clause), mistake.id


def test_read_refuses_a_wrong_line_without_a_right_one(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("a = 1  # wrong\nb = 2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no right one: a = 1"):
        mistake_code.read(file)


def test_stage_rows_are_rows_of_the_documents() -> None:
    assert {s.row for s in STAGES.values()} <= set(documents.ROWS) | documents.NEW
    assert set(documents.ROWS) == {s.row for s in STAGES.values()} - documents.NEW


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda s: s.function.__name__)
def test_stage_section_shows_the_signature_as_it_is_written(stage: stage_parts.Stage) -> None:
    text = stage_parts.section(stage, "en", words.WORDS["en"], "")
    assert f"def {stage.function.__name__}(" in text
    assert f"{{ #{stage.function.__name__} }}" in text
    assert all(f"`{argument}`" in text for argument in stage.arguments)


def test_reference_has_every_public_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [name for page in reference_pages.PAGES for name in reference_pages.names_on(page)]
    assert sorted(listed) == sorted(attnspec.__all__)
    monkeypatch.setattr(attnspec, "__all__", [*attnspec.__all__, "brand_new"])
    with pytest.raises(SystemExit, match="brand_new"):
        reference_pages.write(Output())


def test_output_deletes_what_is_no_longer_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from _build import site

    monkeypatch.setattr(site, "GENERATED", (tmp_path,))
    (tmp_path / "old.md").write_text("old")
    out = Output()
    out.write(tmp_path / "new.md", "new")
    out.sweep()
    assert [p.name for p in tmp_path.iterdir()] == ["new.md"]


def test_markdown_helpers_keep_text_as_it_is() -> None:
    assert cell("a|b\nc") == "a\\|b c"
    assert fence("```\nx\n```").startswith("````text\n")
    assert prose("scale · Q_i < K*") == "scale · Q\\_i &lt; K\\*"
    assert prose("`a_b`") == "`a_b`"


@pytest.mark.parametrize(
    ("file", "name", "declare"),
    [
        ("einsum_attention.py", "EinsumAttention", {}),
        ("mended_attention.py", "MultiHeadAttention", {"mask": "blocked"}),
    ],
)
def test_example_of_a_page_conforms(file: str, name: str, declare: dict[str, str]) -> None:
    target = f"{DOCS / 'examples' / file}:{name}"
    report = attnspec.check_implementation(
        target, declaration=declare, profile="quick", clause=["value", "mask", "params"], isolation="none"
    )
    assert report.ok, [r.clause for r in report.broken]


def test_example_of_the_tutorial_is_a_registered_record() -> None:
    from attnspec.loading import load_target

    namespace = load_target(f"{DOCS / 'examples' / 'einsum_attention.py'}:EinsumAttention").namespace
    record = namespace["IMPLEMENTATION"]
    assert isinstance(record, attnspec.Implementation)
    assert record.target.__name__ == "EinsumAttention"
