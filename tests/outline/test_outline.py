"""Each pass of outlining on a step that needs it: the scans and conds that come of it, as texts.

`e f = scan 4 reverse [a=x | b=y | c=z]` has a as a constant, b as its carry and goes through z by slices c.
"""

import textwrap

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt.ir import GraphPlan, LoopSplit, LoopTiling, Offload, Recompute
from jaxckpt.ir.regions import STACK
from jaxckpt.outline.interfaces import Interfaces, LoopTree
from jaxckpt.rewrite import rewrite
from jaxckpt.rewrite.split_loops import with_split_loops
from jaxckpt.rewrite.tile_loops import with_tiled_loops
from jaxckpt.trace import trace_step
from tests.outline.text import text_of
from tests.residuals import residuals

W = jnp.arange(1.0, 5.0)
X = jnp.float32(1)


def layer(x, w):
    return jnp.sin(x * w), None


def loss(w, x):
    return jax.lax.scan(layer, x, w)[0].sum()


def with_stacks(w, x):
    x, (cosines, streams) = jax.lax.scan(lambda x, w: (jnp.sin(x) * w, (jnp.cos(x), x)), x, w)
    return x + cosines.sum(), streams


def accumulated(w, xs):
    return jax.lax.scan(lambda total, x: (total + jax.grad(lambda w: jnp.sin(w * x))(w), None), X, xs)[0]


def switched(w, which):
    return jax.lax.switch(which, [jnp.sin, lambda w: jnp.sin(jnp.cos(w)), lambda w: w], w)


def planned(traced, decision, among=lambda op: True):
    graph = traced.graph
    decisions = {r.value: decision for r in residuals(graph) if among(graph.ops[r.op])}
    return rewrite(traced, GraphPlan(fingerprint=graph.fingerprint, decisions=decisions, stages=(0,))).jaxpr


def split(step, *args, lengths):
    return with_split_loops(trace_step(step, *args), [LoopSplit(loop=0, lengths=lengths)]).traced


def tiled(step, *args):
    return with_tiled_loops(trace_step(step, *args), [LoopTiling(loop=0, outer=2, inner=2)]).traced


def golden(jaxpr, expected):
    assert text_of(jaxpr) == textwrap.dedent(expected).strip()


def test_values_of_the_same_iteration_go_through_a_stack():
    jaxpr = trace_step(jax.grad(loss), W, X).jaxpr
    golden(
        jaxpr,
        """
        e f g = scan 4 [- | c=a | d=b]
          h = mul c d
          i = sin h
          j = cos h
          -> i j c
        m n = scan 4 reverse [- | k=1.0 | l=b j=f c=g]
          o = mul k j
          p = mul c o
          q = mul o l
          -> q p
        """,
    )


def test_a_value_that_the_step_stacks_is_not_stacked_twice():
    jaxpr = trace_step(jax.grad(with_stacks, has_aux=True), W, X).jaxpr
    golden(
        jaxpr,
        """
        e f g h i = scan 4 [- | c=a | d=b]
          j = sin c
          k = cos c
          l = mul j d
          m = sin c
          -> l c m j k
        n = broadcast_in_dim 1.0
        r s = scan 4 reverse [- | o=1.0 | p=n q=b m=g j=h k=i]
          t = neg p
          u = mul t m
          v = mul j o
          w = mul o q
          x = mul w k
          y = add_any u x
          -> y v
        """,
    )


def test_equations_an_iteration_ahead_are_carried():
    jaxpr = planned(trace_step(jax.grad(loss), W, X), Offload(prefetch=1), lambda op: op.primitive == "cos")
    golden(
        jaxpr,
        """
        f g h i = scan 4 [- | c=a d=0.0 | e=b]
          j = mul c e
          k = sin j
          l = cos j
          m = device_put d
          -> k l m c
        q r s = scan 4 reverse [- | n=1.0 o=g | p=b m=h c=i]
          t = device_put m
          u = mul n o
          v = mul c u
          w = mul u p
          -> w t v
        """,
    )


def test_parts_of_a_loop_index_and_fill_the_same_arrays():
    jaxpr = split(jax.grad(loss), W, X, lengths=(1, 3)).jaxpr
    golden(
        jaxpr,
        """
        e f g h = scan 1 [a=a | c=b d=0 | -]
          i = dynamic_slice a d
          j = squeeze i
          k = mul c j
          l = sin k
          m = cos k
          n = add d 1
          -> l n m c
        q r s t = scan 3 [a=a | o=e p=1 | -]
          u = dynamic_slice a p
          v = squeeze u
          w = mul o v
          x = sin w
          y = cos w
          z = add p 1
          -> x z y o
        aa = broadcast_in_dim 0.0
        ae af ag = scan 3 reverse [a=a | ab=1.0 ac=aa ad=3 | y=s o=t]
          ah = dynamic_slice a ad
          ai = squeeze ah
          aj = mul ab y
          ak = mul o aj
          al = mul aj ai
          am = broadcast_in_dim ak
          an = dynamic_update_slice ac am ad
          ao = add ad -1
          -> al an ao
        as at au = scan 1 reverse [a=a | ap=ae aq=af ar=0 | m=g c=h]
          av = dynamic_slice a ar
          aw = squeeze av
          ax = mul ap m
          ay = mul c ax
          az = mul ax aw
          ba = broadcast_in_dim ay
          bb = dynamic_update_slice aq ba ar
          bc = add ar -1
          -> az bb bc
        """,
    )


def test_parts_carry_row_major_arrays():
    jaxpr = with_split_loops(
        trace_step(jax.value_and_grad(loss), jnp.ones((2, 2, 2)), jnp.ones((2, 2))), [LoopSplit(loop=0, lengths=(1, 1))]
    ).traced.jaxpr
    golden(
        jaxpr,
        """
        e f g h = scan 1 [a=a | c=b d=0 | -]
          i = dynamic_slice a d 0 0
          j = squeeze i
          k = mul c j
          l = sin k
          m = cos k
          n = layout_constraint l
          o = add d 1
          -> n o m c
        r s t u = scan 1 [a=a | p=e q=1 | -]
          v = dynamic_slice a q 0 0
          w = squeeze v
          x = mul p w
          y = sin x
          z = cos x
          aa = layout_constraint y
          ab = add q 1
          -> aa ab z p
        ac = reduce_sum r
        ad = broadcast_in_dim 1.0
        ae = broadcast_in_dim 0.0
        ai aj ak = scan 1 reverse [a=a | af=ad ag=ae ah=1 | z=t p=u]
          al = dynamic_slice a ah 0 0
          am = squeeze al
          an = mul af z
          ao = mul p an
          ap = mul an am
          aq = broadcast_in_dim ao
          ar = dynamic_update_slice ag aq ah 0 0
          as = layout_constraint ap
          at = add ah -1
          -> as ar at
        ax ay az = scan 1 reverse [a=a | au=ai av=aj aw=0 | m=g c=h]
          ba = dynamic_slice a aw 0 0
          bb = squeeze ba
          bc = mul au m
          bd = mul c bc
          be = mul bc bb
          bf = broadcast_in_dim bd
          bg = dynamic_update_slice av bf aw 0 0
          bh = layout_constraint be
          bi = add aw -1
          -> bh bg bi
        """,
    )


def test_tiles_count_on_from_the_loop_around():
    jaxpr = tiled(jax.grad(loss), W, X).jaxpr
    golden(
        jaxpr,
        """
        e f g = scan 2 [a=a | c=b d=0 | -]
          h = add d 0
          k l = scan 2 [a=a | i=c j=h | -]
            m = dynamic_slice a j
            n = squeeze m
            o = mul i n
            p = sin o
            q = add j 1
            -> p q
          r = add d 2
          -> k r c
        s = broadcast_in_dim 0.0
        w x y = scan 2 reverse [a=a | t=1.0 u=s v=2 | c=g]
          z = add v 0
          ac ad ae af = scan 2 [a=a | aa=c ab=z | -]
            ag = dynamic_slice a ab
            ah = squeeze ag
            ai = mul aa ah
            aj = sin ai
            ak = cos ai
            al = add ab 1
            -> aj al ak aa
          am = add v 1
          aq ar as = scan 2 reverse [a=a | an=t ao=u ap=am | ak=ae aa=af]
            at = dynamic_slice a ap
            au = squeeze at
            av = mul an ak
            aw = mul aa av
            ax = mul av au
            ay = broadcast_in_dim aw
            az = dynamic_update_slice ao ay ap
            ba = add ap -1
            -> ax az ba
          bb = add v -2
          -> aq ar bb
        """,
    )


def test_tiles_carry_row_major_arrays_that_they_fill():
    jaxpr = tiled(jax.grad(loss), jnp.ones((4, 2, 2)), jnp.ones((2, 2))).jaxpr
    golden(
        jaxpr,
        """
        e f g = scan 2 [a=a | c=b d=0 | -]
          h = add d 0
          k l = scan 2 [a=a | i=c j=h | -]
            m = dynamic_slice a j 0 0
            n = squeeze m
            o = mul i n
            p = sin o
            q = layout_constraint p
            r = add j 1
            -> q r
          s = layout_constraint k
          t = add d 2
          -> s t c
        u = broadcast_in_dim 1.0
        v = broadcast_in_dim 0.0
        z aa ab = scan 2 reverse [a=a | w=u x=v y=2 | c=g]
          ac = add y 0
          af ag ah ai = scan 2 [a=a | ad=c ae=ac | -]
            aj = dynamic_slice a ae 0 0
            ak = squeeze aj
            al = mul ad ak
            am = sin al
            an = cos al
            ao = layout_constraint am
            ap = add ae 1
            -> ao ap an ad
          aq = add y 1
          au av aw = scan 2 reverse [a=a | ar=w as=x at=aq | an=ah ad=ai]
            ax = dynamic_slice a at 0 0
            ay = squeeze ax
            az = mul ar an
            ba = mul ad az
            bb = mul az ay
            bc = broadcast_in_dim ba
            bd = dynamic_update_slice as bc at 0 0
            be = layout_constraint bb
            bf = layout_constraint bd
            bg = add at -1
            -> be bf bg
          bh = layout_constraint au
          bi = layout_constraint av
          bj = add y -2
          -> bh bi bj
        """,
    )


def test_numbered_iterations_slice_by_an_array_of_numbers():
    jaxpr = planned(trace_step(accumulated, X, W), Recompute())
    golden(
        jaxpr,
        """
        a = iota
        b = sub 3 a
        h = scan 4 [c=c d=d | f=e | g=b]
          i = sub 3 g
          j = dynamic_slice c i
          k = squeeze j
          l = mul d k
          m = cos l
          n o = optimization_barrier d k
          p = mul n o
          q = cos p
          r = mul 1.0 q
          s = mul r k
          t = add f s
          -> t
        """,
    )


def test_stacks_of_the_backward_begin_as_copies_of_its_cotangent():
    """Zeros depend on nothing, and a compiler may write those of all loops long before the loops."""
    step = jax.grad(lambda w, x: jnp.sin(loss(w, jnp.sin(loss(w, x)))))
    jaxpr = planned(trace_step(step, W, X), Recompute(), among=lambda op: op.primitive == "cos")
    golden(
        jaxpr,
        """
        e f = scan 4 [- | c=a | d=b]
          g = mul c d
          h = sin g
          i = cos g
          -> h c
        j = reduce_sum e
        k = sin j
        l = cos j
        o p = scan 4 [- | m=k | n=b]
          q = mul m n
          r = sin q
          s = cos q
          -> r m
        t = reduce_sum o
        u = cos t
        v = optimization_barrier o
        w = reduce_sum v
        x = cos w
        y = mul 1.0 x
        z = slice y
        aa = reshape z
        ab = broadcast_in_dim aa
        ah ai aj = scan 4 reverse [- | ac=y ad=ab ae=3 | af=b ag=b m=p]
          ak = mul m ag
          al = cos ak
          am = mul ac al
          an = mul m am
          ao = mul am af
          ap = broadcast_in_dim an
          aq = dynamic_update_slice ad ap ae
          ar = add ae -1
          -> ao aq ar
        as at = optimization_barrier e ah
        au = reduce_sum as
        av = cos au
        aw = mul at av
        ax = slice aw
        ay = reshape ax
        az = broadcast_in_dim ay
        bf bg bh = scan 4 reverse [- | ba=aw bb=az bc=3 | bd=b be=b c=f]
          bi = mul c be
          bj = cos bi
          bk = mul ba bj
          bl = mul c bk
          bm = mul bk bd
          bn = broadcast_in_dim bl
          bo = dynamic_update_slice bb bn bc
          bp = add bc -1
          -> bm bo bp
        bq = add_any ai bg
        """,
    )


def test_branches_share_slots_of_one_type():
    jaxpr = trace_step(jax.grad(switched), X, 0).jaxpr
    golden(
        jaxpr,
        """
        b = convert_element_type a
        c = clamp 0 b 2
        e f = cond c d
          branch d
            g = cos d
            -> g 0.0
          branch d
            h = cos d
            i = sin d
            j = cos h
            -> j i
          branch k
            -> 0.0 0.0
        l = cond c e f
          branch g m
            n = mul 1.0 g
            -> n
          branch j i
            o = mul 1.0 j
            p = neg o
            q = mul p i
            -> q
          branch r s
            -> 1.0
        """,
    )


def interfaces(program):
    return Interfaces(program.equations, LoopTree(program.loops))


def test_own_stacks_come_first_and_their_values_are_stacked_once():
    program = trace_step(jax.grad(with_stacks, has_aux=True), W, X).program
    own = {e.eqn.params["loop"]: e.eqn.outvars[0] for e in program.equations if e.eqn.primitive.name == STACK}
    found = interfaces(program)
    assert not found.filled
    assert {loop: found.loops[loop].stacks[0][1] for loop in own} == own
    assert own.keys() == {0, 1}
    for loop in found.loops:
        assert len({value for value, _ in loop.stacks}) == len(loop.stacks)


def test_own_stacks_of_several_loops_are_filled_by_these():
    program = split(jax.grad(loss), W, X, lengths=(1, 3)).program
    found = interfaces(program)
    ((stack, array),) = found.filled.items()
    assert [program.loops[loop].offset for loop in array.loops] == [1, 0]
    assert stack is program.outvars[0]
    assert all(stack is not other for loop in found.loops for _, other in loop.stacks)


def test_an_interface_has_what_a_body_reads_and_gives():
    program = trace_step(jax.grad(loss), W, X).program
    forward, backward = interfaces(program).loops
    assert not forward.constants
    assert [type(carry.init) for carry in (*forward.carries, *backward.carries)] == [jex.Var, jex.Literal]
    assert list(forward.slices.values()) == [program.invars[0]]
    assert {stack for _, stack in forward.stacks} < {*backward.slices.values()}
    assert [stack for _, stack in backward.stacks] == [program.outvars[0]]
