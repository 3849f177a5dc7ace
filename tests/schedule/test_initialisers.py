"""What the zeros of a scatter or of a loop wait for, each case on the smallest graph that has it."""

from dataclasses import replace

from jaxckpt.ir import GraphPlan, Phase, Recompute, Save
from jaxckpt.ir.regions import Loop
from jaxckpt.schedule import Barrier, Run, schedule
from jaxckpt.schedule.initialisers import initialiser_dependencies, scatters_fused_with_add
from tests.graphs import Builder


def scattering(*, added=False, kept=False, last=False, size_bytes=400):
    """The gradient of a gather: a product, zeros, what is computed of it element by element, and the scatter.

    The zeros may be the last before the scatter.
    """
    build = Builder()
    table, places = build.input(4000), build.input(8)
    hidden = build.op("sin", table, size_bytes=4000)
    product = build.op("dot_general", hidden, size_bytes=size_bytes, phase=Phase.BACKWARD)
    zeros = None if last else build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("mul", product, hidden, size_bytes=size_bytes, phase=Phase.BACKWARD)
    zeros = zeros or build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD)
    gradient = build.op("scatter-add", zeros, places, scaled, size_bytes=4000, phase=Phase.BACKWARD)
    outputs = [gradient]
    if added:
        outputs = [build.op("add_any", gradient, hidden, size_bytes=4000, phase=Phase.BACKWARD)]
    if kept:
        outputs.append(build.op("exp", zeros, size_bytes=4000, phase=Phase.BACKWARD))
    return build.graph(*outputs), hidden, product, zeros, scaled


def test_zeros_wait_for_the_last_materialised_source():
    graph, _, product, zeros, _ = scattering()
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: product}


def test_zeros_wait_for_the_scattered_value_of_dead_products():
    """Compilers drop operands of a barrier that nobody reads behind it. What is larger than zeros is not put there."""
    graph, _, _, zeros, scaled = scattering(last=True)
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: scaled}
    graph, _, product, zeros, _ = scattering(last=True, size_bytes=8000)
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: product}


def test_zeros_of_the_forward_wait_for_its_last_product():
    """The messages of edges: rows picked of a product, times what the degrees give."""
    build = Builder()
    x, places = build.input(4000), build.input(8)
    degrees = build.op("reduce_sum", x, size_bytes=40)
    hidden = build.op("dot_general", x, size_bytes=4000)
    messages = build.op("mul", build.op("gather", hidden, places, size_bytes=8000), degrees, size_bytes=8000)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    summed = build.op("scatter-add", zeros, places, messages, size_bytes=4000)
    graph = build.graph(build.op("dot_general", summed, size_bytes=4))
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: hidden}


def test_zeros_may_wait_for_the_first_op_of_a_step():
    build = Builder()
    x, places = build.input(4000), build.input(8)
    first = build.op("dot_general", x, size_bytes=4000)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    graph = build.graph(build.op("scatter-add", zeros, places, first, size_bytes=4000))
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: first}


def test_zeros_filled_from_arguments_wait_for_nothing():
    build = Builder()
    x, places = build.input(4000), build.input(8)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    assert initialiser_dependencies(build.graph(build.op("scatter-add", zeros, places, x, size_bytes=4000))) == {}


def test_zeros_with_other_readers_or_addends_wait_for_nothing():
    assert initialiser_dependencies(scattering(added=True)[0]) == {}
    assert initialiser_dependencies(scattering(kept=True)[0]) == {}


def test_zeros_of_scatters_that_are_added_to_each_other_wait():
    """Rows picked of one array by three indices: only the last is scattered into a sum, that of the first two."""
    build = Builder()
    x, places = build.input(4000), build.input(8)
    product = build.op("dot_general", x, size_bytes=4000, phase=Phase.BACKWARD)
    zeros = [build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD) for _ in range(3)]
    parts = [build.op("scatter-add", z, places, product, size_bytes=4000, phase=Phase.BACKWARD) for z in zeros]
    two = build.op("add_any", parts[0], parts[1], size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("add_any", two, parts[2], size_bytes=4000, phase=Phase.BACKWARD))
    assert initialiser_dependencies(graph) == {graph.producer[z]: product for z in zeros[:2]}
    assert scatters_fused_with_add(graph) == {graph.producer[parts[2]]}


def test_of_scatters_that_are_added_one_after_the_other_the_first_is_fused():
    """A gradient to which those of two gathers are added: with the first one it is a scatter itself."""
    build = Builder()
    x, places = build.input(4000), build.input(8)
    product, total = (build.op("dot_general", x, size_bytes=4000, phase=Phase.BACKWARD) for _ in range(2))
    scatters, zeros = [], []
    for _ in range(3):
        zeros.append(build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD))
        scatters.append(build.op("scatter-add", zeros[-1], places, product, size_bytes=4000, phase=Phase.BACKWARD))
        total = build.op("add_any", total, scatters[-1], size_bytes=4000, phase=Phase.BACKWARD)
    graph = build.graph(total)
    fused = [graph.producer[scatters[0]], graph.producer[scatters[2]]]
    assert scatters_fused_with_add(graph) == frozenset(fused)
    assert initialiser_dependencies(graph) == {graph.producer[zeros[1]]: product}


def test_clones_of_zeros_wait_for_what_passes_the_barrier_of_the_clones():
    """The value that the zeros of the forward pass wait for does not: the sum is saved that is computed of it."""
    build = Builder()
    table, places = build.input(4000), build.input(8)
    product = build.op("dot_general", table, size_bytes=400)
    total = build.op("add", product, product, size_bytes=400)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    summed = build.op("scatter-add", zeros, places, total, size_bytes=4000)
    used = build.op("dot_general", summed, product, size_bytes=400)
    graph = build.graph(build.op("mul", used, summed, size_bytes=4000, phase=Phase.BACKWARD))
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions={total: Save(), summed: Recompute()}, stages=(0,))
    steps = schedule(graph, plan).steps
    (clone,) = (step for step in steps if isinstance(step, Run) and step.is_clone and step.op == graph.producer[zeros])
    (barrier,) = (step for step in steps if isinstance(step, Barrier) and step.why == "recompute")
    assert clone.after in barrier.writes


def test_zeros_wait_for_the_table_that_a_gather_picks_of_many_times():
    build = Builder()
    x, places = build.input(4000), build.input(8)
    table = build.op("sin", x, size_bytes=4000, phase=Phase.BACKWARD)
    picked = build.op("gather", table, places, size_bytes=80_000, phase=Phase.BACKWARD)
    zeros = build.op("broadcast_in_dim", size_bytes=4000, phase=Phase.BACKWARD)
    scaled = build.op("sin", picked, size_bytes=80_000, phase=Phase.BACKWARD)
    graph = build.graph(build.op("scatter-add", zeros, places, scaled, size_bytes=4000, phase=Phase.BACKWARD))
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: table}


def test_zeros_wait_only_under_a_plan_that_recomputes():
    graph, hidden, product, zeros, _ = scattering()

    def awaited(**decisions):
        plan = GraphPlan(fingerprint=graph.fingerprint, decisions=decisions.get("decisions", {}), stages=(0,))
        return [step.after for step in schedule(graph, plan).steps if isinstance(step, Run) and zeros in step.writes]

    assert awaited(decisions={hidden: Recompute()}) == [product]
    assert awaited() == [None]


def beginning(*zeros_bytes, body_reads=True):
    """A loop over a carry that begins as zeros, and reads a stack of another loop; and other zeros of some sizes."""
    build = Builder()
    x, small = build.input(4000), build.input(40)
    stacked = build.op("neg", x, size_bytes=4, loop=1)
    zeros = build.op("broadcast_in_dim", size_bytes=4000)
    carry = build.op("loop_carry", zeros, size_bytes=4000, loop=0)
    moved = build.op("add", carry, stacked, *((x, small) if body_reads else ()), size_bytes=4000, loop=0)
    ended = build.op("loop_end", moved, size_bytes=4000, loop=0)
    others = [build.op("broadcast_in_dim", size_bytes=each, phase=Phase.BACKWARD) for each in zeros_bytes]
    chosen = [build.op("select_n", ended, other, size_bytes=4000, phase=Phase.BACKWARD) for other in others]
    outputs = chosen or [ended]
    graph = replace(build.graph(*outputs), loops=tuple(Loop(id=i, length=4, reverse=False) for i in (0, 1)))
    return graph, zeros, small


def test_zeros_that_a_loop_begins_with_wait_for_what_its_body_reads():
    """Else they are one buffer with equal zeros that are read later."""
    graph, zeros, small = beginning(4000)
    assert initialiser_dependencies(graph) == {graph.producer[zeros]: small}


def test_zeros_that_equal_no_others_begin_a_loop_at_once():
    assert initialiser_dependencies(beginning()[0]) == {}
    assert initialiser_dependencies(beginning(8000)[0]) == {}
    assert initialiser_dependencies(beginning(4000, body_reads=False)[0]) == {}
