"""How fast is prefill, variant by variant, next to every peer and the matrix roof?

python -m bench.bench_prefill --package generated/llama3_8b --peers DIR --rows '4x4k,2k+30k'
"""

from __future__ import annotations

from functools import partial

from bench import report
from bench.cases import PREFILL, select
from bench.errors import run_script
from bench.options import parse_options
from bench.runner import run_attention


def main() -> None:
    """Run the rows asked for."""
    options = parse_options(__doc__ or "")
    cases = select(PREFILL, options.rows)
    environment, roofs = report.begin(options)
    rows = run_attention(cases, options, partial(report.print_row, roofs=roofs))
    report.finish("prefill", rows, options, environment, roofs)


if __name__ == "__main__":
    run_script(main)
