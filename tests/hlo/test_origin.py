"""XLA's op names as scopes, primitives and parts of the step."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt.hlo import Part, origin_of
from jaxckpt.hlo.origin import mark_depth


@pytest.mark.parametrize(
    ("op_name", "scope", "op", "part"),
    [
        ("jit(step)/jvp(GPT)/block_0/LayerNorm_0/reduce_sum", "GPT/block_0/LayerNorm_0", "reduce_sum", Part.FORWARD),
        ("jit(step)/transpose(jvp(GPT))/block_0/dot_general", "GPT/block_0", "dot_general", Part.BACKWARD),
        ("jit(step)/transpose(jvp())/mul", "", "mul", Part.BACKWARD),
        ("jit(step)/jvp(GPT)/Embed_0/jit(_take)/and", "GPT/Embed_0", "and", Part.FORWARD),
        ("jit(f)/jvp(net)/while/body/closed_call/layer/tanh", "net/layer", "tanh", Part.FORWARD),
        ("jit(f)/jvp(net)/shard_map/layer/tanh", "net/layer", "tanh", Part.FORWARD),
        ("jit(f)/jvp(net)/cond/branch_2_fun/layer/tanh", "net/layer", "tanh", Part.FORWARD),
        ("jit(f)/transpose(jvp(net))/checkpoint/rematted_computation/b/sin", "net/b", "sin", Part.RECOMPUTE),
        ("jit(f)/jvp(GPT)/bqhd,bkhd->bhqk/dot_general", "GPT/bqhd,bkhd->bhqk", "dot_general", Part.FORWARD),
        ("jit(f)/vmap(jvp(net))/add", "net", "add", Part.FORWARD),
        ("jit(f)/add", "", "add", None),
        ("jit(f)/jvp(a)/mul;jit(f)/transpose(jvp(b))/add", "a", "mul", Part.FORWARD),
        ("", "", "", None),
        ("jit(f)/jvp(while/body)/x/add", "while/body/x", "add", Part.FORWARD),
    ],
)
def test_an_op_name_says_where_it_came_from(op_name, scope, op, part):
    origin = origin_of(op_name)
    assert (origin.scope, origin.op, origin.part()) == (scope, op, part)


def test_forward_over_reverse_is_read_below_its_outer_mark():
    names = ["jit(f)/jvp(jvp(net))/sin", "jit(f)/jvp(transpose(jvp(net)))/cos"]
    origins = [origin_of(name) for name in names]
    depth = mark_depth(origins)
    assert depth == 1
    assert [origin.part(depth) for origin in origins] == [Part.FORWARD, Part.BACKWARD]


@given(st.text(alphabet="abc/()_ jvptranspose", max_size=60))
def test_any_text_is_read(op_name):
    origin = origin_of(op_name)
    assert "//" not in origin.scope
    assert op_name.endswith(origin.op)
