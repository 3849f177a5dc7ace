"""Rules of eviction as a report: overhead, fragmentation and searches by ratio; one simulation; one eager run.

Read after `jaxckpt.report.tree`.
"""

from collections.abc import Callable
from operator import attrgetter

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.dynamic import Simulation
from jaxckpt.dynamic.compare.evictor_comparison import EvictionRow, Evictions
from jaxckpt.dynamic.eager import EagerRun
from jaxckpt.report.tree import Chart, Line, Section, Table, Text, columns


def evictions_report(evictions: Evictions) -> Section:
    """Three charts and the tables behind them, a row a rule and a column a ratio; what did not end, and why.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> found = dynamic.compare_evictors(step, *args, evictors=["dtr"], ratios=[1.0], optimum=False)
      >>> report = dynamic.evictions_report(found)
      >>> report.title
      'Evictors: <lambda> on h200'
      >>> [part.title for part in report.parts[1:4]]
      ['Time by memory', 'Fragmentation by memory', 'Searching by memory']
    """
    found = evictions
    failed = [row for row in found.rows if not row.ok]
    unit = "kernels" if found.basis == "kernels" else "ops, each a kernel of its own"
    parts = (
        Text(
            text=f"{found.calls} {unit}; without a budget {format_bytes(found.unlimited_bytes)}, of these arguments "
            f"{format_bytes(found.argument_bytes)}. Simulated over {found.steps} training steps in one block of memory "
            "with addresses; nothing was run."
        ),
        _chart(
            found, "Time by memory", "multiple of the time without a budget", attrgetter("overhead"), with_plans=True
        ),
        _chart(found, "Fragmentation by memory", "% free at a refused request", lambda row: 100 * row.free_share),
        _chart(found, "Searching by memory", "seconds, logarithmic", attrgetter("search_s"), log=True),
        _by_ratio(found, "Time, as a multiple of that without a budget", _overhead, with_plans=True),
        _by_ratio(found, "Fragmentation: free memory when a request was refused", _fragmentation),
        _by_ratio(found, "Seconds spent in searches", lambda row: format_seconds(row.search_s) if row.ok else ""),
        Section(
            title=f"{len(failed)} did not end",
            parts=tuple(Text(text=f"{row.evictor} at {row.ratio:g}: {row.reason}") for row in failed),
            folded=True,
        ),
    )
    return Section(title=f"Evictors: {found.step} on {found.target}", parts=parts if failed else parts[:-1])


def _chart(
    found: Evictions,
    title: str,
    y_heading: str,
    figure: Callable[[EvictionRow], float],
    *,
    with_plans: bool = False,
    log: bool = False,
) -> Chart:
    names = found.evictors if with_plans else found.rules
    return Chart(
        title=title,
        x_heading="share of the memory without a budget",
        y_heading=y_heading,
        lines=tuple(
            Line(
                name=name,
                points=tuple((row.ratio, figure(row)) for row in found.rows_of(name) if row.ok),
                dashed=name not in found.rules,
            )
            for name in names
        ),
        log=log,
    )


def _by_ratio(found: Evictions, title: str, cell: Callable[[EvictionRow], str], *, with_plans: bool = False) -> Table:
    ratios = tuple(dict.fromkeys(row.ratio for row in found.rows))
    names = found.evictors if with_plans else found.rules
    return Table(
        title=title,
        columns=columns("evictor", *(f">{ratio:g}" for ratio in ratios)),
        rows=tuple((name, *map(cell, found.rows_of(name))) for name in names),
    )


def _overhead(row: EvictionRow) -> str:
    return f"{row.overhead:.3f}" if row.ok else row.reason.partition(":")[0]


def _fragmentation(row: EvictionRow) -> str:
    return f"{row.free_share:.1%}" if row.ok else ""


def simulation_report(run: Simulation | EagerRun) -> Section:
    """The counters of one simulation, or of one eager run.

    Example:
      >>> from jaxckpt import dynamic
      >>> run = dynamic.simulate(dynamic.unit_chain(16), budget=8, evictor="dtr")
      >>> dynamic.simulation_report(run).title
      'dtr (counted), budget 8 B: ok'
    """
    title, *lines = str(run).splitlines()
    return Section(title=title, parts=tuple(Text(text=" ".join(line.split())) for line in lines))
