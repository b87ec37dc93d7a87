"""`pagegen generate`: a spec, a model and prompts in, text out.

It knows how to read prompts and how to show text; serving is the runtime's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagegen import build as building
from pagegen.console import Screen
from pagegen.errors import BuildError, DeviceError, ModelError, RequestError
from pagegen.prompts import Prompt, read_prompts
from pagegen.spec import Spec, load

if TYPE_CHECKING:
    from pagegen.runtime.engine import Engine
    from pagegen.runtime.request import Handle

MODELS = {"smollm2_135m": "smollm2-135m-instruct"}  # of shipped specs, by their first words


@dataclass(frozen=True)
class Setting:
    """How to serve. model: "" for the spec's own; device: "" for a GPU if there is one."""

    spec: Path
    out: Path
    model: str = ""
    backend: str = ""
    device: str = ""
    raw: bool = False
    num_blocks: int = 0
    max_num_seqs: int = 64


@contextmanager
def bar(screen: Screen, what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Progress on a terminal; nothing in a pipe, where the text goes."""
    if not screen.terminal:
        yield lambda part, done, total: None
        return
    with screen.progress(what) as step:
        yield step


def open_engine(screen: Screen, setting: Setting) -> tuple[Engine, Any]:
    """The spec's package, built if it is not there, and the model on it: engine and tokenizer.

    Raises ModelError without the extra `models`, DeviceError for a device that is not there.
    """
    from pagegen.runtime.models.interface import transformers

    spec = load(setting.spec)
    name = setting.model or next((MODELS[one] for one in MODELS if spec.name.startswith(one)), "")
    if not name:
        raise ModelError(
            f"{spec.name} names no model", remedy="--model FOLDER, which holds config.json"
        )
    # First of all: without it a build of a minute would be for nothing.
    transformers().utils.logging.disable_progress_bar()  # beside our own
    device = _device(setting.device)
    folder = _package(screen, spec, setting)

    import pagegen.runtime.loader as loader
    from pagegen.runtime.engine import Engine
    from pagegen.runtime.models.checkpoint import load_model

    ops = loader.load(folder, setting.backend or None)
    with bar(screen, "load") as step:
        step(name, 0, 1)
        loaded = load_model(name, dtype=spec.dtype_query, device=device)
        step(name, 1, 1)
    engine = Engine(
        ops,
        loaded,
        num_blocks=setting.num_blocks or None,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=max(2048, setting.max_num_seqs),
    )
    return engine, loaded.tokenizer


def _device(name: str) -> str:
    import torch

    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise DeviceError("torch finds no GPU", remedy="--device cpu")
    return name or ("cuda" if there else "cpu")


def _package(screen: Screen, spec: Spec, setting: Setting) -> Path:
    """The folder that holds what the spec gives; built when it is missing or stale."""
    package = building.prepare(setting.spec)
    folder = setting.out / spec.name
    compiled = (folder / building.ARTIFACTS).is_file() or _device(setting.device) == "cpu"
    if compiled and not building.differences(package, setting.out):
        return folder
    with bar(screen, f"build {spec.name}") as step:
        return building.build(package, setting.out, progress=step).folder


def submit(engine: Engine, tokenizer: Any, prompt: Prompt, *, raw: bool, where: str) -> Handle:
    """Queue a prompt, in the model's chat form if it has one. Raises RequestError."""
    from pagegen.runtime.request import Request

    if getattr(tokenizer, "chat_template", None) and not raw:
        turn = [{"role": "user", "content": prompt.text}]
        ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    return engine.submit(
        Request(
            ids,
            prompt.sampling(),
            max_new_tokens=prompt.max_new_tokens,
            n=prompt.n,
            priority=prompt.priority,
            name=where,
        )
    )


@dataclass
class TextStream:
    """Text of tokens that come one by one; a character is held back until all its bytes are there.

    Only the newest tokens are decoded, so that a long text does not cost its length squared.
    """

    tokenizer: Any
    ids: list[int] = field(default_factory=list)
    begin: int = 0  # where decoding starts: one piece before what is new, for its leading space
    shown: int = 0  # tokens whose text was given

    def add(self, tokens: tuple[int, ...], *, last: bool = False) -> str:
        """The text that is certain now."""
        self.ids += tokens
        before = self._text(self.shown)
        whole = self._text(len(self.ids))
        if whole.endswith("\N{REPLACEMENT CHARACTER}") and not last:
            return ""
        self.begin, self.shown = self.shown, len(self.ids)
        return whole[len(before) :]

    def _text(self, end: int) -> str:
        text: str = self.tokenizer.decode(self.ids[self.begin : end], skip_special_tokens=True)
        return text


def pieces(engine: Engine, tokenizer: Any, handle: Handle) -> Iterator[str]:
    """The text of a request's only answer, piece by piece."""
    stream = TextStream(tokenizer)
    for event in engine.stream(handle):
        yield stream.add(event.token_ids, last=bool(event.finish_reason))


def say(screen: Screen, setting: Setting, prompt: Prompt) -> None:
    """Stream one prompt's text."""
    engine, tokenizer = open_engine(screen, setting)
    handle = submit(engine, tokenizer, prompt, raw=setting.raw, where="--prompt")
    written = []
    for piece in pieces(engine, tokenizer, handle):
        written.append(piece)
        if not screen.as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    output, totals = handle.outputs[0], engine.totals
    speed = totals.generated_tokens / max(totals.busy_seconds, 1e-9)
    screen.line("")
    if screen.terminal:
        screen.line(f"{len(output.token_ids)} tokens, {speed:.1f} a second, {output.finish_reason}")
    screen.document(
        {
            "text": "".join(written),
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "tokens_per_s": speed,
        }
    )


def serve(screen: Screen, setting: Setting, prompts: list[Prompt], where: str) -> None:
    """Serve a file of requests together, and report."""
    engine, tokenizer = open_engine(screen, setting)
    handles = [
        submit(engine, tokenizer, prompt, raw=setting.raw, where=f"{where}, request {number}")
        for number, prompt in enumerate(prompts, 1)
    ]
    done = 0
    with bar(screen, "generate") as step:
        while engine.has_work:
            engine.step()
            ended = sum(handle.done for handle in handles)
            if ended > done:
                done = ended
                step(f"{engine.totals.generated_tokens} tokens", done, len(handles))
    texts = [
        [tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in handle.outputs]
        for handle in handles
    ]
    rows = [
        [
            str(number),
            str(len(handle.request.prompt_token_ids)),
            repr(text)[:60],
            str(len(output.token_ids)),
            output.finish_reason,
        ]
        for number, (handle, answers) in enumerate(zip(handles, texts, strict=True), 1)
        for output, text in zip(handle.outputs, answers, strict=True)
    ]
    screen.table("answers", ["request", "prompt", "text", "tokens", "end"], rows)
    found = engine.metrics()
    summary = {
        "requests": len(handles),
        "generated_tokens": found.totals.generated_tokens,
        "seconds": round(found.totals.busy_seconds, 3),
        "tokens_per_s": round(found.tokens_per_s, 1),
        "tail_waste": round(found.tail_waste, 4),
        "prefix_hit_rate": round(found.prefix_hit_rate, 4),
        "preemptions": found.counters.preemptions,
    }
    screen.table("served", list(summary), [[str(value) for value in summary.values()]])
    answers_of = [
        [
            {"text": text, "token_ids": one.token_ids, "finish_reason": one.finish_reason}
            for one, text in zip(handle.outputs, answers, strict=True)
        ]
        for handle, answers in zip(handles, texts, strict=True)
    ]
    screen.document({"summary": summary, "answers": answers_of})


def generate(
    screen: Screen, setting: Setting, prompt: Prompt, requests: Path | None, *, has_prompt: bool
) -> None:
    """One prompt, or a file of them. Raises RequestError unless it is exactly one of both."""
    if has_prompt == (requests is not None):
        raise RequestError(
            "no prompt" if requests is None else "a prompt and a file",
            allowed="--prompt TEXT, or --requests FILE.jsonl",
        )
    if not setting.spec.is_file():
        raise BuildError("no such spec", where=str(setting.spec))
    prompt.sampling()  # refused before a model is loaded
    if requests is None:
        say(screen, setting, prompt)
    else:
        serve(screen, setting, read_prompts(requests, prompt), str(requests))
