"""The law of templates, read from their syntax trees: they print names of the plan, never values.

A template sees `plan` and `prov`; it specialises by constants and composes by includes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import jinja2
import pytest
from jinja2 import meta, nodes

from pagegen.emit import Provenance, environment
from pagegen.package import PackagePlan
from pagegen.plan import Plan

FOLDER = Path(__file__).parents[2] / "templates"
TEMPLATES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.j2"))
# The partials that print rows of the plan, and may look into a row.
ROW_PRINTERS = ("_constants", "_header", "_params", "_wgmma")
NAMES = {"plan", "prov"}


def syntax(text: str) -> nodes.Template:
    """The tree of a template, in which Jinja's own globals (range, dict) are no known names."""
    env = environment(jinja2.DictLoader({}))
    env.globals.clear()
    return env.parse(text)


def attributes(kind: type[Plan | PackagePlan | Provenance]) -> set[str]:
    """What a template may ask of a plan: fields, properties and methods."""
    return {field.name for field in fields(kind)} | {n for n in dir(kind) if n[0] != "_"}


def faults(text: str, name: str = "cuda/kernel.cu.j2") -> Iterator[str]:
    """Everything in a template that the law forbids."""
    tree = syntax(text)
    row_printer = Path(name).name.partition(".")[0] in ROW_PRINTERS
    for free in sorted(meta.find_undeclared_variables(tree) - NAMES):
        yield f"the name {free}"
    for output in tree.find_all(nodes.Output):
        for part in output.nodes:
            if not isinstance(part, nodes.TemplateData) and not has_name(part):
                yield f"line {part.lineno}: prints a constant"
    for branch in tree.find_all(nodes.If):
        if not row_printer and not is_plan_field(branch.test):
            yield f"line {branch.lineno}: tests more than one field of the plan"
    for kind in (nodes.Filter, nodes.Assign, nodes.Import, nodes.FromImport, nodes.Extends):
        for node in tree.find_all(kind):
            yield f"line {node.lineno}: {kind.__name__.lower()}"
    for macro in () if row_printer else tree.find_all(nodes.Macro):
        yield f"line {macro.lineno}: a macro"
    yield from layout_faults(text)
    yield from unknown_attributes(tree, name)


def layout_faults(text: str) -> Iterator[str]:
    """Tags stand alone at column zero, so that they vanish without a trace."""
    for number, line in enumerate(text.splitlines(), 1):
        if "{%" in line and not re.fullmatch(r"\{% [^%]+ %\}", line):
            yield f"line {number}: a tag that is not alone at column zero"
        if "{#" in line:
            yield f"line {number}: a Jinja comment; comments are for the reader of the output"


def unknown_attributes(tree: nodes.Template, name: str) -> Iterator[str]:
    """Fields that a plan does not have, found without rendering."""
    plan = PackagePlan if name.startswith("host/") else Plan
    known = {"plan": attributes(plan), "prov": attributes(Provenance)}
    for node in tree.find_all(nodes.Getattr):
        owner = node.node.name if isinstance(node.node, nodes.Name) else ""
        if owner in known and node.attr not in known[owner]:
            yield f"line {node.lineno}: {owner}.{node.attr}"


def has_name(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) or any(node.find_all(nodes.Name))


def is_plan_field(node: nodes.Node) -> bool:
    """`plan.window` or `not plan.window`."""
    if isinstance(node, nodes.Not):
        node = node.node
    if not isinstance(node, nodes.Getattr) or not isinstance(node.node, nodes.Name):
        return False
    return node.node.name == "plan"


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_keeps_the_law(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert list(faults(text, name)) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_includes_partials_of_its_language(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.endswith("\n")
    folder, file = name.split("/")
    for node in syntax(text).find_all(nodes.Include):
        assert isinstance(node.template, nodes.Const), "an include names a file"
        assert node.template.value in TEMPLATES
        assert re.fullmatch(rf"{folder}/_\w+\.(cu|py)\.j2", node.template.value)
    assert re.fullmatch(r"_?[a-z]\w*\.(cu|py)\.j2", file)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("int x[2] = {{1}};", "prints a constant"),  # C++ that Jinja would render as 1
        ("{{ -1 }}", "prints a constant"),
        ("{{1, 2}}", "prints a constant"),
        ("{{ 'text' }}", "prints a constant"),
        ("{{ head_dim }}", "the name head_dim"),
        ("{{ range }}", "the name range"),
        ("{% for i in range(4) %}\n{% endfor %}", "the name range"),
        ("{{ plan.head_dims }}", "plan.head_dims"),
        ("{{ prov.date }}", "prov.date"),
        ("{{ plan.name | upper }}", "filter"),
        ("{% set x = plan.name %}", "assign"),
        ("{% if plan.window and plan.causal %}\n{% endif %}", "more than one field"),
        ("{% if plan.num_warps == 4 %}\n{% endif %}", "more than one field"),
        ("  {% if plan.window %}\n{% endif %}", "not alone at column zero"),
        ("int y; {% if plan.window %}\n{% endif %}", "not alone at column zero"),
        ("{%- if plan.window %}\n{% endif %}", "not alone at column zero"),
        ("{# note #}", "a Jinja comment"),
        ("{% macro f() %}\n{% endmacro %}", "a macro"),
    ],
)
def test_the_lint_sees(text: str, fault: str) -> None:
    assert any(fault in found for found in faults(text)), list(faults(text))


@pytest.mark.parametrize(
    "text",
    [
        "{{ plan.symbol }} by {{ prov.version }}",
        "int x[2] = { {1} };",
        "{% for row in plan.params %}\n{{ row.name }} {{ loop.index }}\n{% endfor %}",
        "{% if plan.window %}\na\n{% else %}\nb\n{% endif %}",
        "{% if not plan.csr %}\n{% endif %}",
    ],
)
def test_the_lint_allows(text: str) -> None:
    assert list(faults(text)) == []
