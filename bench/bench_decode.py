"""How fast is decode, variant by variant, next to every peer and the bandwidth roof?

python -m bench.bench_decode --package generated/llama3_8b --peers DIR --rows '1x*,64x8k'
"""

from __future__ import annotations

from functools import partial

from bench import report
from bench.cases import DECODE, select
from bench.errors import run_script
from bench.options import parse_options
from bench.runner import run_attention


def main() -> None:
    """Run the rows asked for."""
    options = parse_options(__doc__ or "")
    cases = select(DECODE, options.rows)
    environment, roofs = report.begin(options)
    rows = run_attention(cases, options, partial(report.print_row, roofs=roofs))
    report.finish("decode", rows, options, environment, roofs)


if __name__ == "__main__":
    run_script(main)
