"""What does paging cost: is a small KV block as fast as a large one?

Each row runs with blocks of 16 and of 128 tokens, all calls in turns; give a package for each size:
python -m bench.bench_block_size --package generated/A --package generated/B --peers DIR
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import report
from bench.cases import Case, block_size_pairs, select
from bench.errors import run_script
from bench.options import Options, parse_options
from bench.runner import Field, Row, gather_field, prepare_attention, release, run_together


def run_pair(pair: Sequence[Case], field: Field, options: Options) -> tuple[Row, ...]:
    """Both block sizes of a row in one measurement."""
    prepared = [prepare_attention(case, field, options) for case in pair]
    return run_together(prepared, options.repeats)


def compare(small: Row, large: Row) -> str:
    """Everyone's time with small blocks over that with large ones."""
    with_large = report.fastest_by_name(large)
    parts = []
    for name, result in report.fastest_by_name(small).items():
        other = with_large.get(name)
        if result.timing is not None and other is not None and other.timing is not None:
            parts.append(f"{name} {result.timing.median_us / other.timing.median_us:.3f}")
    sizes = f"b{small.case.block_size} / b{large.case.block_size}"
    return f"{small.case.op} {small.case.name}: {sizes} time: {', '.join(parts) or 'nothing timed'}"


def main() -> None:
    """Run the rows asked for."""
    options = parse_options(__doc__ or "")
    pairs = block_size_pairs()
    wanted = select([small for small, _ in pairs], options.rows)
    environment, roofs = report.begin(options)
    field = gather_field(options)
    rows: list[Row] = []
    for pair in pairs:
        if pair[0] not in wanted:
            continue
        both = run_pair(pair, field, options)
        for row in both:
            report.print_row(row, roofs)
        print(f"{compare(*both)}\n", flush=True)
        rows += both
        release()
    report.finish("block-size", rows, options, environment, roofs)


if __name__ == "__main__":
    run_script(main)
