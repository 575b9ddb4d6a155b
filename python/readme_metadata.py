"""README.md as a package index shows it: pip's build asks this module for it (see pyproject.toml).

An index shows the page alone, so that links to other files of the repository would lead nowhere. They become links
below `base` where pyproject.toml gives one, and their bare text otherwise.
"""

import pathlib
import re

_RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]*)\)")


def with_links_below(text, base=None):
    if base is None:
        return _RELATIVE_LINK.sub(r"\2", text)
    return _RELATIVE_LINK.sub(lambda link: f"{link[1]}[{link[2]}]({base.rstrip('/')}/{link[3]})", text)


def dynamic_metadata(field, settings, _project=None):
    if field != "readme":
        raise ValueError(f"this provides the readme, not {field}")
    readme = pathlib.Path(__file__).parent.parent / "README.md"
    text = with_links_below(readme.read_text(encoding="utf-8"), settings.get("base"))
    return {"content-type": "text/markdown", "text": text}
