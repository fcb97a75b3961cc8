"""HTML and SVG, built of elements: whatever is not an element already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"meta", "br", "line", "rect", "circle", "path"})


class Markup(str):
    """Text that is markup; everything else that gets into an element is escaped."""

    __slots__ = ()


Child = Markup | str | int | Iterable["Child"]


def el(tag: str, /, *children: Child, **attributes: str | float) -> Markup:
    """An element. `_` in attribute names stands for `-`, and one at the end for nothing: `class_`."""
    said = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(_short(value))}"'
        for name, value in attributes.items()
    )
    if tag in _VOID and not children:
        return Markup(f"<{tag}{said}/>")
    return Markup(f"<{tag}{said}>{_inside(children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Elements and texts, one after the other."""
    return Markup(_inside(children))


def _inside(children: Iterable[Child]) -> str:
    return "".join(_one(child) for child in children)


def _one(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return html.escape(str(child))
    return _inside(child)


def _short(value: str | float) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
