"""Tables of names that devices chose: shown as they are, neither as markup nor as what a terminal obeys."""

from __future__ import annotations

import rich.table
from rich.console import RenderableType
from rich.style import StyleType
from rich.text import Text

from holdmq.names.visible_text import visible


class PlainTable(rich.table.Table):
    """A table whose cells of text are taken literally: ``[red]`` is five characters; Text is styled."""

    def add_row(
        self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row; cells that are `str` lose what is invisible."""
        plain = (Text(visible(cell)) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, style=style, end_section=end_section)
