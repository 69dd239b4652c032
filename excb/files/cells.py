"""Cells of CSV files that spreadsheets do not take for formulas."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of what they take for one


def path_cell(path: str) -> str:
    """A path; one that begins like a formula is written ./PATH, which is the same file."""
    return f"./{path}" if path.startswith(_FORMULA) else path


def text_cell(text: str) -> str:
    """A text; one that begins like a formula, apostrophes apart, gets an apostrophe before it."""
    return f"'{text}" if text.lstrip("'").startswith(_FORMULA) else text


def plain_text(cell: str) -> str:
    """The text that `text_cell` wrote."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell
