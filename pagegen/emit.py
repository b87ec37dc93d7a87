"""Plan -> source text; owns the one Jinja environment.

It knows no number of its own and formats nothing: templates are written already formatted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import jinja2.meta

from pagegen import __version__
from pagegen.errors import TemplateError
from pagegen.manifest import Manifest
from pagegen.package import PackagePlan, package
from pagegen.plan import Plan
from pagegen.spec import Spec

EXTENSIONS = {"cuda": "cu", "triton": "py", "torch": "py", "host": "py"}


@dataclass(frozen=True)
class Provenance:
    """What an emitted file says of its origin; no date, no path, no user."""

    version: str
    spec_file: str  # base name
    spec_digest: str
    template: str  # "cuda/decode.cu.j2"
    template_digest: str  # of the template and every file it includes
    targets: str  # "sm_80 sm_90a"


@dataclass(frozen=True)
class Source:
    """One emitted file; `path` is relative to the package, with forward slashes."""

    path: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class TemplateFolder(jinja2.BaseLoader):
    """Reads templates as package resources (works from a zip) and notes what was read."""

    def __init__(self) -> None:
        self.root = files("pagegen") / "templates"
        self.read: dict[str, str] = {}

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, None]:
        resource = self.root.joinpath(*template.split("/"))
        if not resource.is_file():
            raise jinja2.TemplateNotFound(template)
        text = resource.read_text(encoding="utf-8")
        self.read[template] = text
        return text, template, None


def only_code(value: object) -> str | int:
    """Refuse everything but str and int: True, None and floats must never reach source text."""
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, naming what the plan lacks
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise TemplateError(f"a template printed {value!r}", allowed="str and int")
    return value


def environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """The one environment, for every language."""
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        finalize=only_code,
    )


def template_digest(template: str) -> str:
    """Hash of a template with everything it includes, whether or not a plan reaches it."""
    loader = TemplateFolder()
    env = environment(loader)
    pending, seen = [template], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        text, _, _ = loader.get_source(env, name)
        pending.extend(ref for ref in jinja2.meta.find_referenced_templates(env.parse(text)) if ref)
    body = "\n".join(f"{name}\n{loader.read[name]}" for name in sorted(seen))
    return hashlib.sha256(body.encode()).hexdigest()


def emit(plan: Plan, spec_file: str) -> Source:
    """The source of one kernel. `spec_file` is the spec's base name, for the header.

    Raises TemplateError when the template names what the plan lacks.
    """
    extension = EXTENSIONS[plan.backend]
    template = f"{plan.backend}/{plan.kernel}.{extension}.j2"
    text = render(template, plan, provenance(template, spec_file, plan.spec_digest, plan.targets))
    return Source(f"{plan.backend}/{plan.kernel}_{plan.variant}.{extension}", text)


def host_modules(plan: PackagePlan) -> tuple[str, ...]:
    """The host templates a package needs, without their suffix."""
    base = (
        "init", "backends", "checks", "errors", "faults", "kernels", "launch", "memo", "package",
        "source", "spec", "torch_ops", "trace",
    )  # fmt: skip
    shared = ("attention",) if plan.attention or plan.merge_states else ()
    decode = ("decode_first", "splits", "workspace") if plan.decode else ()
    return tuple(sorted((*base, *shared, *decode, *plan.kernels)))


def emit_host(plan: PackagePlan) -> tuple[Source, ...]:
    """The host side of a package: __init__.py and the private modules beside it.

    Raises TemplateError when a template names what the plan lacks.
    """
    sources = []
    for module in host_modules(plan):
        template = f"host/{module}.py.j2"
        text = render(
            template, plan, provenance(template, plan.spec_file, plan.spec_digest, plan.archs)
        )
        path = "__init__.py" if module == "init" else f"_{module}.py"
        sources.append(Source(path, text))
    return tuple(sources)


def emit_package(
    spec: Spec, plans: Sequence[Plan], kernels: Sequence[Source]
) -> tuple[Source, ...]:
    """What a package holds besides its kernels, which emit made of `plans` in order."""
    plan = package(spec, plans, [kernel.digest for kernel in kernels])
    manifest = Manifest.from_plans(plan, [kernel.path for kernel in kernels])
    return (*emit_host(plan), Source("manifest.json", manifest.to_json()))


def provenance(
    template: str, spec_file: str, spec_digest: str, targets: tuple[str, ...]
) -> Provenance:
    """Where a file comes from."""
    return Provenance(
        version=__version__,
        spec_file=spec_file,
        spec_digest=spec_digest[:8],
        template=template,
        template_digest=template_digest(template)[:8],
        targets=" ".join(targets),
    )


def render(template: str, plan: object, prov: Provenance) -> str:
    """The template's text with the two names it may use."""
    try:
        return environment(TemplateFolder()).get_template(template).render(plan=plan, prov=prov)
    except jinja2.TemplateError as error:
        raise TemplateError(str(error), where=f"templates/{template}") from error
