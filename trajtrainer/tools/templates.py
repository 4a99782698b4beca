"""Renders templates of source code."""

from collections.abc import Mapping


def fill(package: str, template: str, parts: Mapping[str, object]) -> str:
    """Render a package's template, replacing each ``<<part>>`` with its value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # imported only when needed

    environment = Environment(  # noqa: S701 - source code, not HTML
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(parts)
