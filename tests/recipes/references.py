"""The module finds the files that the scripts of a recipe name."""

import re
from pathlib import Path

_NAMED = re.compile(r"(?<![\w/.])(?:\.{1,2}/|conf/)[\w/.]+\.(?:sh|yaml)\b")


def named_files(recipe: Path) -> set[str]:
    """Return what a recipe's own scripts name outside of comments, from its directory.

    All scripts run in that directory.
    """
    scripts = [*recipe.glob("*.sh"), *recipe.glob("local/*.sh")]
    code = re.sub(r"(?m)^\s*#.*", "", "\n".join(each.read_text() for each in scripts))
    code = re.sub(r"\$MAIN_ROOT|\$\{MAIN_ROOT:\?\}", "../../..", code)
    return set(_NAMED.findall(code))
