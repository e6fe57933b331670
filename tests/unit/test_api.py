"""The public names: all there, all imported late, and no torch before one of them is used."""

import json

import pytest

import attnspec


@pytest.mark.parametrize("name", [*attnspec.__all__, "__version__", "parametrize_with_clauses"])
def test_public_name_resolves(name: str) -> None:
    assert getattr(attnspec, name) is not None
    assert name in dir(attnspec)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'attnspec' has no attribute 'check'$"):
        attnspec.check  # noqa: B018


def test_import_brings_no_heavy_package(fresh_python) -> None:
    """`import attnspec` is cheap: nothing but the standard library is there afterwards."""
    done = fresh_python(
        """
        import json, sys
        import attnspec
        heavy = ("torch", "numpy", "hypothesis", "jaxtyping", "beartype", "rich", "einops", "attnspec_impls")
        print(json.dumps([name for name in heavy if name in sys.modules]))
        """
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_errors_and_registry_need_no_torch(fresh_python) -> None:
    done = fresh_python(
        """
        import sys
        from attnspec import AttnspecError, clauses, registry, Declaration
        assert len(registry()) and len(clauses()) and Declaration()
        print("torch" in sys.modules)
        """
    )
    assert done.stdout.strip() == "False", done.stderr


def test_plugin_module_needs_no_attnspec(fresh_python) -> None:
    """pytest imports the plugin first of all; import hooks must still see the import of attnspec."""
    done = fresh_python("import sys, attnspec_pytest; print('attnspec' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_command_line_help_needs_no_torch(fresh_python) -> None:
    done = fresh_python(
        """
        import sys
        from attnspec._cli import main
        try:
            main(["check", "--help"])
        except SystemExit:
            pass
        print("torch" in sys.modules)
        """
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
