"""Every task of the project: `nox -l` lists them, `nox -s NAME -- ARGUMENTS` runs one.

Everything that imports torch runs in one environment, made by the session `env` and required by the
others, so that torch is installed once. `lint` and `wheel` keep environments of their own: the first
needs ruff alone, the second must be clean.
"""

import hashlib
import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
# virtualenv brings pip, which picks the smallest torch build that fits the pin; uv may pick a CUDA build.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["check"]

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = ROOT / "pyproject.toml"
BIN = "Scripts" if os.name == "nt" else "bin"
# A worker imports torch for itself; beyond eight they cost more memory than they save time.
PYTEST = ("-m", "pytest", "-n", "auto", "--maxprocesses=8")


def requirements(*groups: str) -> tuple[str, ...]:
    """The requirements of some dependency groups."""
    return nox.project.dependency_groups(nox.project.load_toml(PYPROJECT), *groups)


def install(session: nox.Session, *arguments: str) -> None:
    """Install with the exact pins."""
    session.install("-c", str(CONSTRAINTS), *arguments)


def shared_environment(session: nox.Session) -> Path:
    """Where the session `env` put the environment that all others run in."""
    return session.env_dir.with_name("env")


def python(session: nox.Session, *arguments: str, **variables: str) -> None:
    """Run the shared environment's Python, with its scripts first on PATH."""
    environment = shared_environment(session)
    path = os.pathsep.join([str(environment / BIN), os.environ.get("PATH", os.defpath)])
    # Tensors in tests are small, and pytest runs a process for each core: more threads only wait.
    settings = {"PATH": path, "VIRTUAL_ENV": str(environment), "OMP_NUM_THREADS": "1", **variables}
    session.run(str(environment / BIN / "python"), *arguments, external=True, env=settings)


@nox.session(default=False)
def env(session: nox.Session) -> None:
    """Prepare the environment that the sessions share; it runs by itself when one needs it."""
    # pip needs seconds to find that nothing is to be done, at every call of every session.
    stamp = session.env_dir / "installed"
    wanted = hashlib.sha256(PYPROJECT.read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    install(session, *requirements("tests", "types"))
    # The build backend is there already, at its pin: no isolated build, no second download.
    install(session, "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(wanted)


@nox.session(venv_backend="none", requires=["env"])
def check(session: nox.Session) -> None:
    """Check every built-in implementation and print the conformance matrix (the default)."""
    python(session, "-m", "attnspec", "check", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def tests(session: nox.Session) -> None:
    """Run the project's tests; arguments go to pytest."""
    python(session, *PYTEST, *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def models(session: nox.Session) -> None:
    """Check the attention of a much-used library, built from small configs; installs the library first."""
    python(session, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *requirements("models"))
    python(session, "-m", "pytest", "tests/strangers", "-k", "transformers", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False, tags=["fast"])
def unit(session: nox.Session) -> None:
    """Run the unit tests alone; arguments go to pytest."""
    python(session, *PYTEST, "tests/unit", *session.posargs)


@nox.session(default=False, tags=["fast"])
def lint(session: nox.Session) -> None:
    """Check style and format with ruff; `-- --fix` mends what it can."""
    install(session, *requirements("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]))


@nox.session(venv_backend="none", requires=["env"], default=False, tags=["fast"])
def types(session: nox.Session) -> None:
    """Check the types of spec/ and impls/ with mypy."""
    python(session, "-m", "mypy", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def defects(session: nox.Session) -> None:
    """Plant known defects and show which clause rejects each."""
    python(session, "tests/defects/kill_table.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def soak(session: nox.Session) -> None:
    """Check the built-in implementations over many seeds, looking for a false alarm."""
    python(session, "tests/soak/soak.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def bound(session: nox.Session) -> None:
    """Validate the computed error bound: correct paths stay inside it, planted defects leave it."""
    python(session, "tests/numerics/validate_bound.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def bench(session: nox.Session) -> None:
    """Measure the time of the implementations and of the suite itself."""
    python(session, "-m", "attnspec", "bench", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def cuda(session: nox.Session) -> None:
    """Run the checks that need a CUDA device; without one they are skipped by name."""
    python(session, "tests/cuda/run_cuda.py", *session.posargs)


@nox.session(venv_backend="none", requires=["env"], default=False)
def docs(session: nox.Session) -> None:
    """Build the documentation site strictly into site/ and test it; `-- serve` serves it while you write."""
    python(session, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *requirements("docs"))
    python(session, "docs/_build/generate.py")
    command = session.posargs if session.posargs[:1] == ["serve"] else ["build", *session.posargs]
    python(session, "-m", "mkdocs", *command, "--strict", NO_MKDOCS_2_WARNING="1")
    if command[0] == "build":
        python(session, "-m", "pytest", "tests/docs")


@nox.session(default=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel into dist/ and try it in a clean environment."""
    install(session, *requirements("build"))
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run("python", "-m", "hatchling", "build", "-t", "wheel", "-d", "dist")
    built = [str(path) for path in (ROOT / "dist").glob("*.whl")]
    install(session, *built)
    # The version does not move between two builds, and pip would keep the older one.
    install(session, "--force-reinstall", "--no-deps", *built)
    # Outside the checkout only the installed files can be found.
    session.chdir(session.create_tmp())
    session.run("python", "-c", "import attnspec, attnspec_impls, attnspec_pytest")
    session.run("attnspec", "check", "sdpa", "--profile", "quick")
