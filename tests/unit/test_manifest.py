"""The manifest: the same for equal plans, read back whole, refused when damaged."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pagegen.emit import emit
from pagegen.errors import PackageError
from pagegen.lower import lower
from pagegen.manifest import Manifest
from pagegen.package import package
from pagegen.spec import Spec
from tests.specimens import specimen


def manifest_of(spec: Spec) -> Manifest:
    plans = lower(spec)
    sources = [emit(plan, spec.file_name) for plan in plans]
    return Manifest.from_plans(
        package(spec, plans, [source.digest for source in sources]),
        [source.path for source in sources],
    )


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return manifest_of(specimen())


def test_json_there_and_back_loses_nothing(manifest: Manifest) -> None:
    text = manifest.to_json()
    again = Manifest.from_json(text)
    assert again == manifest and again.to_json() == text
    assert text == manifest_of(specimen()).to_json(), "the same spec gives the same bytes"


def test_it_says_what_the_spec_and_the_plans_say(manifest: Manifest) -> None:
    assert (manifest.spec.num_q_heads, manifest.spec.layout, manifest.spec.lookup) == (
        4,
        "NHD",
        "table",
    )
    assert manifest.variants("decode", "cuda")[0] == "default"
    row = manifest.find("decode", "cuda")
    assert row is not None and row.targets == ("sm_90a", "sm_80")
    assert row.source == "cuda/decode_default.cu" and len(row.source_digest) == 64
    assert row.params[0] == ("out", "ptr", "bf16") and row.constants["HEAD_DIM"] == 32
    assert manifest.find("decode", "cuda", "none such") is None
    csr = manifest_of(specimen(lookup="csr", layout="HND", soft_cap=30.0))
    assert (csr.spec.lookup, csr.spec.layout, csr.spec.soft_cap) == ("csr", "HND", 30.0)


def test_it_knows_nothing_of_compilers(manifest: Manifest) -> None:
    text = manifest.to_json()
    for word in ("cubin", "registers", "ctas_per_sm", "toolkit", "nvrtc", "ptxas"):
        assert f'"{word}' not in text, "rebuilding with another compiler must not change it"


def test_the_digest_moves_with_every_kernel() -> None:
    digests = {
        manifest_of(spec).digest
        for spec in (
            specimen(),
            specimen(head_dim=64),
            specimen(digest="1" * 64),
            specimen(name="b"),
        )
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "format None"),
        ('{"format": 9}', "format 9"),
        ('{"format": 1}', "lacks or mistakes 'name'"),
        (
            '{"format": 1, "name": "a", "pagegen": "0", "digest": "", "spec": [], "kernels": []}',
            "lacks or mistakes",
        ),
    ],
)
def test_a_damaged_manifest_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(PackageError, match=words) as caught:
        Manifest.from_json(text, "a/manifest.json")
    assert str(caught.value).startswith("a/manifest.json: ")
    assert "build the package again" in str(caught.value)


def test_every_cut_of_the_file_is_refused(manifest: Manifest) -> None:
    text = manifest.to_json()
    for length in (0, 1, len(text) // 2, len(text) - 3):
        with pytest.raises(PackageError):
            Manifest.from_json(text[:length])


@pytest.mark.parametrize("name", ["symbol", "params", "constants", "checked"])
def test_a_missing_field_is_named(manifest: Manifest, name: str) -> None:
    data = json.loads(manifest.to_json())
    del data["kernels"][0][name]
    with pytest.raises(PackageError, match=name):
        Manifest.from_json(json.dumps(data))


def test_reading_it_needs_no_compiler() -> None:
    code = """
import sys
for name in ("jinja2", "yaml", "msgspec", "torch"):
    sys.modules[name] = None
import pagegen.manifest, pagegen.runtime.loader, pagegen.runtime.device
"""
    done = subprocess.run(  # noqa: PLW1510 - its output says more
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
