"""List scheduling of a step under a plan: what is recomputed, stored and loaded, when, and behind which barriers.

`schedule` turns decisions into steps. The rewriter maps them to equations one to one, and the cost model replays the
same steps, so what is predicted is what is built.

The rules are those of `jax.checkpoint` (rematerialisation) seen from the joint graph. The examples change the step
"0  1  2  3  4  5  6  7": ops 0 to 3 are forward, and op i writes value i + 1. A star marks a clone.

1. A saved value is pinned: a barrier passes it on, and every reader reads it behind that barrier. Otherwise a compiler
   may keep both the value and what it was computed from. Stacked residuals of a scan need no barrier. The largest
   elements of an array (`top_k`) are pinned without a decision too, those of clones as well: XLA cuts them from the
   sorted array where they are read, and keeps that.

     save 1, drop 3     0  pin [1]  1  2  3  4  barrier [2] after 5  2*  5  6  7

2. A dropped value is recomputed just before the first op after the forward pass that reads it, from available values:
   arguments, saved values, residuals left to the compiler, results of the step and of ops with effects.

     drop 2             0  1  2  3  4  5  barrier [1] after 6  1*  6  7

3. Connected clones of a stage start behind one barrier, together with the frontier of the backward: the end of its
   longest chain of ops so far. So no clone can start before the backward arrives, nor be merged with the original
   (common subexpression elimination). Clones are connected if one reads what the other writes, or if both read the
   same array; a saved value in between separates them. XLA's scheduler may start all clones behind a barrier at once.
   Clones that are not connected start together if the backward has no value in memory between their first readers: a
   barrier there would split a kernel in two (a dropout's mask and the activation before it). So do clones that take
   little memory beside what a barrier of their own would write (the positions at which a gradient is added).

     drop 1 and 2       0  1  2  3  4  5  barrier [0] after 6  0*  1*  6  7
     drop 1 and 3, save 2
                        0  1  pin [2]  2  3  4  barrier [2] after 5  2*  5  6  barrier [0] after 7  0*  7

   What a barrier passes is written to memory. Where casts alone lead to a result of the backward from a smaller value,
   the barrier passes that one, and the casts run again behind it. The first barrier passes the loss and the metrics
   (see `backward_barriers`).

   An argument that clones only repeat over other arrays, a bias or a scale, passes no barrier: see
   `arguments_only_broadcast`. A value that views and elementwise ops make of arguments alone starts no others: a head
   tied to the embedding would start the last block. Where it is read before its own stage opens, it is recomputed by
   itself.

4. A clone made on the way to the values of one stage serves that stage alone; another stage makes its own. So does a
   later visit of the backward to the same stage, with a visit to another one in between: the gradient of a gradient
   goes over all layers twice, and clones that wait for the second time take as much as saved values.

     drop 1, 2 and 3; a stage begins at op 2
                        0  1  2  3  4  barrier [0] after 5  0*  1*  2*  5  barrier [0] after 6  0*  1*  6  7

5. An op with effects never runs twice: what it writes is available.

6. An offloaded or partitioned value is pinned, then stored; `transfers` has the barriers around the copies.

     offload 2          0  1  pin [2]  store 2  barrier [2, 2]  2  3  4  5  barrier [2, 6] after 6  load 2  6  7

7. A value of a loop's body is recomputed in the body that reads it, iteration by iteration, and a value from outside
   before the loop begins. A slice is cut again by the loop that reads it. Clones in another loop's body need no
   barrier: a compiler merges nothing across loops, and iterations wait for each other. The same holds for branches of
   a cond, each a computation of its own. Carries, results of branches and the index of a cond are always saved.

     drop 2 where ops 0 to 3 are one loop and the others another
                        0  1  2  3  4  5  1*  6  7

8. The gradient of a pooling reads the pooled array behind a barrier with its cotangent. Compilers split that op, and
   would compute the positions of the maxima long before they are read.

9. A sum of gradients that the backward adds to behind later products passes the barriers of stages on its way (see
   `passing`). A compiler would postpone all additions, and keep their operands. So does the gradient of a
   weight that is small against what it is computed of. A gradient that is summed over devices passes one barrier
   later, so that the sum can run beside what is in between.

10. The zeros that a gradient is scattered into wait until the gradient exists, those that a loop begins with for what
    the loop reads (see `initialisers`); those of a clone wait for the barrier of the clones.

11. A weight that the update replaces passes the first barrier of the one stage that reads it, for the backward; the
    update reads the argument. A compiler copies such a weight, and the copy begins at the barrier (see
    `passing`).

12. On one device, in a plan without transfers, the updates whose gradients are finished run before the barrier of a
    stage, and their results pass it (see `updates`). A compiler would put them at the end of the step, and keep the
    gradients. In a plan with values on the host all results of the backward pass the barrier (see `transfers`). An
    update of a parameter that the backward still reads, and that passes no barrier by rule 11, waits for this reader.

13. Optimiser state in host memory is loaded and stored around the updates of its group, which run as soon as the
    group's gradients are finished (see `host_state`).

14. In the body of a loop, in a plan without transfers, the product that gives a small gradient of a weight comes before
    the other products with its cotangent (see `passing`): both pass a barrier. Elementwise ops read the cotangent where
    it is written, in one kernel with what writes it. With loads in the body the barriers took memory.

15. In a plan without values on the host, sums over a cotangent that a matrix product writes, such as the gradient of
    a bias behind the layer, run behind the barrier that passes the cotangent, once its clones are written (see
    `backward_barriers`).

     drop 1; op 4 is a product, op 5 a sum over value 5, and op 6 reads value 5 too
                        0  1  2  3  4  barrier [0] after 5  0*  5  6  7

The rules are objects that write into one `StepWriter`, not passes over a finished list, because they need each other's
results: clones read loaded values, so recomputation asks for loads; a load renames finished gradients, and the barrier
of a stage renames sums of gradients, which later loads and barriers read. Each op is handled in this order: enter its
loop (7), update groups of state (13), wait for stores and start loads (6), resolve its operands (2 to 5, 7 to 9, 11,
12, 14), write sums that waited for a barrier (15), run it (10), pass its gradient through a barrier (14), pin and store
its results (1, 6). Loads come before operands because the barrier of a stage waits for its sources; stores come last
because they read pinned values.

Read after `recomputation`. Complexity: linear in ops, plus the clones.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from jaxckpt.ir import Graph, GraphPlan, Kind, Op, Phase, Recompute
from jaxckpt.ir.kind import POOLING_GRADIENT
from jaxckpt.ir.regions import BODY_OUTPUTS
from jaxckpt.schedule.backward_barriers import BackwardBarriers
from jaxckpt.schedule.host_state import HostState
from jaxckpt.schedule.partition import decisions_with_axes
from jaxckpt.schedule.passing import BodyGradients
from jaxckpt.schedule.recomputation import Availability, Recomputation, largest_elements
from jaxckpt.schedule.steps import Run, Schedule, StepWriter, unchanged_runs
from jaxckpt.schedule.transfers import Transfers
from jaxckpt.schedule.updates import UpdateRunner
from jaxckpt.schedule.validate import validate_decisions


def schedule(graph: Graph, plan: GraphPlan) -> Schedule:
    """Lays out the work of a step under a plan.

    Where a plan only saves, the steps are the graph's own ops and nothing else: there is nothing to pin against. Raises
    `GraphError` and `UnsupportedDecisionError` for decisions that cannot be carried out.
    """
    validate_decisions(graph, plan)
    decisions = decisions_with_axes(graph, plan.decisions)
    return _Scheduler(graph, plan if decisions is plan.decisions else replace(plan, decisions=decisions)).run()


class _Scheduler:
    def __init__(self, graph: Graph, plan: GraphPlan):
        self.graph = graph
        self.writer = StepWriter(graph)
        self.barriers = barriers = BackwardBarriers(graph, self.writer)
        self.updates = UpdateRunner(graph, self.writer, barriers)
        self.host_state = HostState(graph, plan, self.writer, self.updates)
        self.transfers = Transfers(graph, plan, self.writer, self.updates, barriers)
        availability = Availability(graph, plan)
        self.dropped = availability.dropped
        self.recomputation = Recomputation(
            graph, plan, self.writer, availability, self.transfers, self.updates, barriers
        )
        may_order = self.dropped and not self.transfers.values
        self.body_gradients = graph.once(BodyGradients) if may_order else None
        self.cotangents: dict[int, int] = {}
        """For cotangents that passed a barrier with a gradient the instances that products read behind it."""
        self.prepared: set[int] = set()
        """Loops for which values from outside are ready; all branches of a cond are prepared before the first."""
        saved = {v for v, decision in plan.decisions.items() if not isinstance(decision, Recompute)}
        changes = bool(self.dropped or self.transfers.values)
        saved -= self.transfers.in_bodies
        saved |= graph.once(largest_elements) - self.transfers.values
        self.pinned = {v for v in saved if not self._is_stacked(v)} if changes else set()

    def run(self) -> Schedule:
        """Writes all steps, op by op."""
        graph, writer, transfers = self.graph, self.writer, self.transfers
        changed, kept_by = self._ops_that_change(), self._ops_that_keep()
        moves = bool(transfers.values or self.updates.held)
        for unchanged in graph.once(unchanged_runs):
            op = unchanged.op
            if op in self.updates.done:
                continue
            if unchanged.loop != writer.loop:
                self._enter(unchanged.loop)
            if self.updates.held:
                if writer.loop is None and graph.ops[op].primitive not in BODY_OUTPUTS:
                    self.host_state.before(op)
                if op in self.updates.done or op in self.updates.held:
                    continue
            if transfers.values:
                transfers.before(graph.ops[op])
            step = self._run(graph.ops[op]) if moves or op in changed else unchanged
            self.barriers.write_postponed()
            writer.steps.append(step)
            if moves and graph.ops[op].phase is Phase.BACKWARD:
                transfers.after_backward(unchanged.writes)
            if self.body_gradients is not None and op in self.body_gradients.by_product:
                self._pass_gradient(*self.body_gradients.by_product[op])
            if op in kept_by:
                self._keep(unchanged.writes)
        return writer.schedule()

    def _pass_gradient(self, gradient: int, cotangent: int) -> None:
        """Passes a gradient and the cotangent that its product read through a barrier (rule 14)."""
        current = self.writer.current
        instances = current[gradient], self.cotangents.get(cotangent, current[cotangent])
        current[gradient], self.cotangents[cotangent] = self.writer.barrier(instances, why="recompute")

    def _ops_that_keep(self) -> set[int | None]:
        """Ops that write a value which is pinned or stored."""
        return {self.graph.producer[v] for v in (*self.pinned, *self.transfers.in_bodies)}

    def _ops_that_change(self) -> set[int]:
        """Ops that read a value which is pinned, dropped or passed on by a barrier, and those that wait for one."""
        sums = self.recomputation.accumulators.passing if self.dropped else ()
        in_bodies = () if self.body_gradients is None else self.body_gradients.values
        weights = chain.from_iterable(self.recomputation.weights.values())
        changed = chain(self.pinned, self.dropped, sums, in_bodies, weights)
        readers = {op for v in changed for op in self.graph.readers[v]}
        return readers | self.recomputation.initialisers.keys()

    def _enter(self, loop: int | None) -> None:
        """Leaves bodies and enters others, after what they need from outside is ready (rule 7)."""
        graph, left = self.graph, self.graph.path(self.writer.loop)
        for around in graph.path(loop):
            if around in left:
                continue
            for branch in graph.sibling_branches[around]:
                if (self.dropped or self.transfers.values) and branch not in self.prepared:
                    self.prepared.add(branch)
                    self.recomputation.prepare(branch)
        self.writer.loop = loop

    def _run(self, op: Op) -> Run:
        writer, initialisers = self.writer, self.recomputation.initialisers
        if op.phase is Phase.FORWARD:
            reads = tuple(writer.current[v] for v in op.reads)
        else:
            reads = self.recomputation.operands(op)
        if self.dropped and op.primitive == POOLING_GRADIENT and op.phase is Phase.BACKWARD:
            reads = self._behind_cotangent(op, reads)
        if self.cotangents and op.kind is Kind.CONTRACTION:
            reads = tuple(self.cotangents.get(v, read) for v, read in zip(op.reads, reads, strict=True))
        after = writer.current[initialisers[op.id]] if op.id in initialisers else None
        return Run(op=op.id, reads=reads, writes=op.writes, loop=writer.loop, after=after)

    def _behind_cotangent(self, op: Op, reads: tuple[int, ...]) -> tuple[int, ...]:
        """Passes a saved operand through a barrier with the cotangent (rule 8)."""
        cotangent, operand = reads
        if self.writer.origin[operand] not in self.pinned or self.writer.current[op.reads[1]] != operand:
            return reads
        return cotangent, *self.writer.barrier((operand,), trigger=cotangent, why="recompute")

    def _keep(self, writes: Sequence[int]) -> None:
        """Pins and stores what an op writes (rules 1 and 6)."""
        written = sorted(writes)
        for value in (v for v in written if v in self.pinned):
            (self.writer.current[value],) = self.writer.barrier((self.writer.current[value],), why="pin")
            if value in self.transfers.values:
                self.transfers.store(value)
        for value in (v for v in written if v in self.transfers.in_bodies):
            self.transfers.store(value)

    def _is_stacked(self, value: int) -> bool:
        """True if a scan stacks a value for another loop."""
        loop = self.graph.loop_of[value]
        return loop is not None and self.graph.loops[loop].rolled and loop not in self.graph.loops_after_forward
