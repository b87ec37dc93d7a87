"""The command line: one verb a stage, each prints what its stage made.

It knows how to ask and how to show; every decision is a stage's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pagegen import (
    __version__,
    build as building,
    explain as explaining,
    generate as generating,
    views,
)
from pagegen.console import Screen
from pagegen.errors import BuildError, PagegenError, VerifyError
from pagegen.generate import Setting
from pagegen.prompts import Prompt
from pagegen.proof import prove
from pagegen.spec import load

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A compiler for paged-attention kernels: YAML specs in, verified kernels out.",
)

Specs = Annotated[list[Path], typer.Argument(help="spec files (YAML)", metavar="SPEC...")]
OneSpec = Annotated[Path, typer.Argument(help="a spec file (YAML)", metavar="SPEC")]
Folder = Annotated[Path, typer.Argument(help="a generated folder", metavar="FOLDER")]
Out = Annotated[Path, typer.Option("--out", help="where <name>/ is written")]
Archs = Annotated[list[str] | None, typer.Option("--arch", help="compile for this target instead")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=0, help="compilers at once; 0: all cores")]

GENERATED = Path("generated")


@app.command()
def check(specs: Specs, as_json: Json = False) -> None:
    """Read and validate specs."""
    screen = Screen(as_json)
    loaded = [load(path) for path in specs]
    screen.table(*views.spec_rows(loaded))
    screen.document([views.spec_document(spec) for spec in loaded])


@app.command()
def plan(spec: OneSpec, arch: Archs = None, as_json: Json = False) -> None:
    """Show every number of every kernel with its reason."""
    screen = Screen(as_json)
    package = building.prepare(spec, tuple(arch or ()))
    for one in package.plans:
        screen.table(*views.plan_rows(one))
    screen.document([views.plan_document(one) for one in package.plans])


@app.command()
def emit(
    spec: OneSpec,
    kernel: Annotated[str, typer.Option(help="only this kernel")] = "",
    backend: Annotated[str, typer.Option(help="only this backend")] = "",
    variant: Annotated[str, typer.Option(help="only this variant")] = "",
) -> None:
    """Print emitted source; nothing is written."""
    package = building.prepare(spec)
    shown = [
        source
        for one, source in zip(package.plans, package.kernels, strict=True)
        if kernel in ("", one.kernel) and backend in ("", one.backend)
        if variant in ("", one.variant)
    ]
    if not shown:
        made = sorted({f"{p.kernel} {p.backend} {p.variant}" for p in package.plans})
        raise BuildError("no such kernel in this spec", allowed="; ".join(made), where=str(spec))
    for source in shown:
        typer.echo(source.text, nl=False)


@app.command()
def build(
    specs: Specs,
    out: Out = GENERATED,
    arch: Archs = None,
    check: Annotated[
        bool, typer.Option("--check", help="only compare OUT with what the specs give")
    ] = False,
    jobs: Jobs = 0,
    verify: Annotated[bool, typer.Option(help="run a few small cases against the oracle")] = True,
    as_json: Json = False,
) -> None:
    """Emit, compile for every target (no GPU needed), verify, and write OUT/<name>/."""
    screen = Screen(as_json)
    packages = building.prepare_all(specs, tuple(arch or ()))
    if check:
        compare(packages, out)
        screen.line(f"{len(packages)} packages in {out} are what their specs give")
        return
    documents = []
    for package in packages:
        with screen.progress(f"build {package.spec.name}") as step:
            built = building.build(package, out, jobs=jobs, progress=step)
        verdict = views.Verdict.read(built.folder)
        if verify and verdict is None:
            verdict = prove(screen, built.folder, quick=True)
        screen.table(*views.built_rows(built, verdict))
        screen.line(views.built_line(built, verdict))
        documents.append(views.built_document(built, verdict))
        if verdict is not None and verdict.failures:
            raise VerifyError("\n".join(verdict.failures), where=str(built.folder))
    screen.document(documents)


def compare(packages: tuple[building.Package, ...], out: Path) -> None:
    """Raise BuildError listing every file of OUT that differs."""
    lines = [
        f"{package.spec.name}/: {line}"
        for package in packages
        for line in building.differences(package, out)
    ]
    if lines:
        raise BuildError(
            "\n".join([f"{out} is not what the specs give", *lines]),
            remedy=f"run pagegen build and commit {out}",
        )


@app.command()
def verify(
    folder: Folder,
    backend: Annotated[list[str] | None, typer.Option(help="only this backend")] = None,
    seed: Annotated[int, typer.Option(help="of the random inputs")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="one small case a kernel")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="run CUDA kernels in the simulator, GPU or not")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a generated package against the float64 oracle on adversarial cases."""
    screen = Screen(as_json)
    chosen = tuple(backend or ())
    verdict = prove(screen, folder, backends=chosen, seed=seed, quick=quick, simulate=simulate)
    screen.table(*views.verdict_rows(folder, verdict))
    screen.document(verdict.document())
    if verdict.failures:
        raise VerifyError("\n".join(verdict.failures), where=str(folder))


@app.command()
def explain(
    spec: OneSpec,
    shape: Annotated[
        list[str] | None, typer.Option(help="decode:64x8192 or prefill:1x2048+30720")
    ] = None,
    bandwidth: Annotated[float, typer.Option(min=0.001, help="TB/s read")] = 4.46,
    tflops: Annotated[float, typer.Option(min=0.001, help="TFLOP/s of a matmul")] = 790.0,
    as_json: Json = False,
) -> None:
    """The roofline: bytes, FLOPs and floor time of shapes."""
    screen = Screen(as_json)
    loaded = load(spec)
    roof = explaining.Roof(bandwidth, tflops)
    floors = [
        explaining.floor(loaded, explaining.parse_shape(text), roof)
        for text in (shape or explaining.DEFAULT_SHAPES)
    ]
    screen.table(*views.floor_rows(loaded, floors))
    screen.document([views.floor_document(floor) for floor in floors])


@app.command()
def generate(
    spec: OneSpec,
    prompt: Annotated[str | None, typer.Option(help="go on from this text")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="serve a file: one JSON object a line", metavar="FILE.jsonl")
    ] = None,
    model: Annotated[str, typer.Option(help="a name, a folder or a .gguf file")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="of each answer")] = 128,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0: all tokens")] = 0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int | None, typer.Option(help="of the random numbers")] = None,
    backend: Annotated[str, typer.Option(help="cuda, triton or torch")] = "",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="no chat form around prompts")] = False,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="sequences at once")] = 64,
    num_blocks: Annotated[int, typer.Option(min=0, help="of the cache; 0: what fits")] = 0,
    out: Out = GENERATED,
    as_json: Json = False,
) -> None:
    """Run a model on the spec's kernels: stream one prompt's text, or serve a file of requests."""
    setting = Setting(spec, out, model, backend, device, raw, num_blocks, max_num_seqs)
    default = Prompt(prompt or "", max_new_tokens, temperature, top_k, top_p, seed=seed)
    screen = Screen(as_json)
    generating.generate(screen, setting, default, requests, has_prompt=prompt is not None)


@app.command("ls")
def list_packages(out: Out = GENERATED, as_json: Json = False) -> None:
    """List generated packages and what is compiled in them."""
    screen = Screen(as_json)
    rows = views.package_rows(out)
    screen.table(*rows)
    screen.document([dict(zip(rows[1], row, strict=True)) for row in rows[2]])


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
) -> None:
    """pagegen."""
    if version:
        typer.echo(f"pagegen {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point: a PagegenError is one message and status 2, never a traceback."""
    try:
        app()
    except PagegenError as error:
        print(f"error: {error.render()}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted; nothing was left half-written", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our pipe has gone; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
