"""Links to clauses, stages, implementations and the issues that are the reasons of clauses."""

import re

from attnspec import clauses

ISSUE = re.compile(r"^([\w.-]+/[\w.-]+)#(\d+)$")


def clause(name: str, *, up: str) -> str:
    """Return a link to a clause; `up` leads from the page to the root of the documentation.

    Raises:
        UnknownNameError: If the contract has no such clause, so that no page names one that is gone.
    """
    return f"[`{name}`]({up}clauses/{clauses()[name].chapter}.md#{name})"


def clause_list(names: tuple[str, ...] | list[str], *, up: str) -> str:
    """Return links to several clauses."""
    return ", ".join(clause(name, up=up) for name in names)


def reason(text: str) -> str:
    """Return a reason as a link to its issue, or as words. GitHub leads on to a pull request by itself."""
    found = ISSUE.match(text)
    return f"[{text}](https://github.com/{found[1]}/issues/{found[2]})" if found else text


def issues(text: str) -> str:
    """Return a sentence in which every `owner/repository#number` is a link."""
    return re.sub(
        r"\b([\w.-]+/[\w.-]+)#(\d+)", lambda m: f"[{m[0]}](https://github.com/{m[1]}/issues/{m[2]})", text
    )
