"""Fills in templates of source code."""

from collections.abc import Mapping


def fill(package: str, template: str, parts: Mapping[str, object]) -> str:
    """The text of a template of a package, which is in its own language, with a value for each ``<<part>>``."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: no one else who imports this needs it

    environment = Environment(  # noqa: S701 - source code, not HTML
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(parts)
