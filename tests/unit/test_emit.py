"""Emission: the same plan gives the same bytes, and nothing but code reaches them."""

from __future__ import annotations

import getpass
from typing import Any

import jinja2
import pytest

from pagegen.emit import TemplateFolder, emit, environment, only_code, template_digest
from pagegen.errors import TemplateError
from pagegen.lower import lower
from tests.specimens import specimen


@pytest.mark.parametrize("value", [True, None, 0.5, [1], b"x"])
def test_only_text_and_whole_numbers_are_printed(value: Any) -> None:
    with pytest.raises(TemplateError, match="allowed: str and int"):
        only_code(value)
    with pytest.raises(TemplateError):
        environment(jinja2.DictLoader({"t": "{{ plan }}"})).get_template("t").render(plan=value)


def test_a_name_the_plan_lacks_is_an_error() -> None:
    template = environment(jinja2.DictLoader({"t": "{{ plan.nothing }}"})).get_template("t")
    with pytest.raises(jinja2.UndefinedError):
        template.render(plan=lower(specimen())[0])


def test_a_missing_template_is_an_error() -> None:
    with pytest.raises(jinja2.TemplateNotFound):
        environment(TemplateFolder()).get_template("cuda/nothing.cu.j2")


@pytest.mark.parametrize("lookup", ["table", "csr"])
@pytest.mark.parametrize("backend", ["cuda", "triton", "torch"])
def test_every_kernel_is_emitted_and_speaks_of_nobody(backend: str, lookup: str) -> None:
    for plan in lower(specimen(backends=(backend,), lookup=lookup, window=9, soft_cap=5.0)):
        source = emit(plan, "specimen.yaml")
        assert source == emit(plan, "specimen.yaml")
        assert source.path.startswith(f"{backend}/{plan.kernel}_")
        assert "specimen.yaml" in source.text and "do not edit" in source.text
        assert "import pagegen" not in source.text and "from pagegen" not in source.text
        for private in ("/home/", "/root", "/tmp/", f"/{getpass.getuser()}/", "202"):
            assert private not in source.text.split("sha256", maxsplit=1)[0]
            assert private == "202" or private not in source.text
        assert source.text.endswith("\n") and not source.text.endswith("\n\n")
        assert "\t" not in source.text and " \n" not in source.text


def test_the_template_digest_covers_what_it_includes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = template_digest("cuda/decode.cu.j2")
    original = TemplateFolder.get_source

    def edited(self: TemplateFolder, env: jinja2.Environment, name: str) -> Any:
        text, path, fresh = original(self, env, name)
        if name.endswith("_mma.cu.j2"):
            text += "// edited\n"
            self.read[name] = text
        return text, path, fresh

    monkeypatch.setattr(TemplateFolder, "get_source", edited)
    assert template_digest("cuda/decode.cu.j2") != before
    assert template_digest("cuda/copy_blocks.cu.j2") == template_digest("cuda/copy_blocks.cu.j2")
