"""What XLA dumps of real programs, held against its statistics and against counts by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt.compiler import footprint
from jaxckpt.hlo import Frame, Part, Role, Space, Use, memory_from_hlo, reconcile
from jaxckpt.hlo.origin import stack_frames
from jaxckpt.hlo.read import _overlaps
from jaxckpt.hlo.schema import StackFrameIndex
from tests.hlo.conftest import BATCH, STACKED, VOCABULARY, loss, params, scan_step

MIB = 2**20
TOKENS, WIDTH, HIDDEN = 4096, 512, 2048
BLOCK_FLOPS = 2 * 2 * TOKENS * WIDTH * HIDDEN
HEAD_FLOPS = 2 * TOKENS * WIDTH * VOCABULARY


@pytest.fixture(params=["plain_step", "checkpointed_step", "scanned_step"])
def made(request):
    return request.getfixturevalue(request.param)


def test_sums_reconcile_with_the_compiler_to_the_byte(made):
    memory = made.memory
    assert memory.temp_bytes == made.temp_bytes
    assert sum(a.size_bytes for a in memory.allocations if a.use is Use.ARGUMENT) == made.argument_bytes
    assert sum(a.size_bytes for a in memory.allocations if a.donated) == made.alias_bytes
    assert memory.problems == () == made.caveats
    figures = {"temp_bytes": made.temp_bytes, "argument_bytes": made.argument_bytes, "alias_bytes": made.alias_bytes}
    assert not list(reconcile(memory, figures))


def test_a_sum_that_does_not_reconcile_is_reported(plain_step):
    (said,) = reconcile(plain_step.memory, {"temp_bytes": plain_step.temp_bytes + 1})
    assert "temp_bytes" in said and str(plain_step.temp_bytes + 1) in said


def test_no_two_buffers_are_in_one_place_at_one_time(made):
    assert not list(_overlaps(made.memory.temporaries))


def test_the_live_peak_nearly_fills_the_allocation(made):
    memory = made.memory
    assert 0.95 * memory.temp_bytes <= memory.peak_bytes <= memory.temp_bytes
    assert memory.peak_bytes == sum(b.size_bytes for b in memory.alive_at(memory.peak))
    assert memory.fragmentation == memory.temp_bytes / memory.peak_bytes


def test_every_temporary_is_attributed(made):
    temporaries = made.memory.temporaries
    unknown_bytes = sum(b.size_bytes for b in temporaries if b.part is Part.UNKNOWN)
    assert unknown_bytes <= 0.01 * sum(b.size_bytes for b in temporaries)


def test_temporaries_have_the_python_stack_of_their_code(made):
    memory = made.memory
    stacks = {buffer: memory.stack(buffer) for buffer in memory.temporaries}
    assert all(stack[0].source == buffer.source for buffer, stack in stacks.items() if stack)
    told_bytes = sum(buffer.size_bytes for buffer, stack in stacks.items() if stack)
    assert told_bytes >= 0.99 * sum(b.size_bytes for b in memory.temporaries)
    calls = [[frame.function.rsplit(".")[-1] for frame in stack] for stack in stacks.values() if stack]
    called = [functions for functions in calls if functions[0] == "block"]  # of recomputed ops JAX has no callers
    assert any({"loss", "scan_loss"} & set(functions) for functions in called)
    files = {frame.source.rpartition(":")[0] for frame in memory.stack(memory.temporaries[0])}
    assert any(file.endswith("tests/hlo/conftest.py") for file in files)


def test_frames_are_kept_once_and_a_stack_that_calls_itself_ends():
    index = StackFrameIndex(
        file_names=["a.py", "b.py"],
        function_names=["outer", "inner"],
        file_locations=[
            {"file_name_id": 1, "function_name_id": 1, "line": 3},
            {"file_name_id": 2, "function_name_id": 2, "line": 5},
        ],
        stack_frames=[
            {"file_location_id": 1},
            {"file_location_id": 2, "parent_frame_id": 1},
            {"file_location_id": 2, "parent_frame_id": 4},
            {"file_location_id": 1, "parent_frame_id": 3},
        ],
    )
    frames, innermost = stack_frames(index, [2, 0, 1, 2, 99, 3])
    assert frames[:2] == (Frame(function="outer", source="a.py:3"), Frame(function="inner", source="b.py:5", caller=0))
    assert innermost == (1, -1, 0, 1, -1, 3) and len(frames) == 4
    assert all(frame.caller < at for at, frame in enumerate(frames))


def test_flops_are_those_of_the_products(plain_step):
    memory = plain_step.memory
    # The gradient of the first block's input is not asked for, and neither is that of the batch.
    expected = 3 * 3 * BLOCK_FLOPS + 3 * HEAD_FLOPS - BLOCK_FLOPS // 2
    assert sum(k.matmul_flops * k.count for k in memory.kernels) == expected
    assert {k.matmul_dtype for k in memory.kernels if k.matmul_flops} == {"bfloat16"}


def test_flops_in_a_loop_count_as_often_as_it_runs(scanned_step):
    memory = scanned_step.memory
    assert sum(k.matmul_flops * k.count for k in memory.kernels) == 3 * 6 * BLOCK_FLOPS
    assert {k.count for k in memory.kernels if k.matmul_flops} == {6}


def test_each_branch_counts_as_often_as_the_others():
    w, x = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)

    def chosen(w, x, kind):
        return jax.lax.switch(kind, [lambda x: x @ w, lambda x: jnp.tanh(x @ w) @ w, jnp.sin], x)

    memory = footprint(chosen, w, x, jax.ShapeDtypeStruct((), jnp.int32), target="cpu").memory
    assert sum(k.matmul_flops * k.count for k in memory.kernels) == pytest.approx(2 * 32 * 64 * 64)


def test_recomputation_by_jax_checkpoint_is_marked_and_counted(plain_step, checkpointed_step):
    assert not [k for k in plain_step.memory.kernels if k.part is Part.RECOMPUTE]
    again = [k for k in checkpointed_step.memory.kernels if k.part is Part.RECOMPUTE]
    assert sum(k.matmul_flops for k in again) >= 3 * BLOCK_FLOPS // 2  # XLA drops the product that nobody reads
    whole, *_ = checkpointed_step.memory.scopes(1)
    assert whole.recomputed_kernels == len(again)
    assert whole.recomputed_flops == sum(k.flops for k in again)


def test_blocks_hold_the_same_and_less_when_they_are_recomputed(plain_step, checkpointed_step):
    def held(made):
        return [s.held_bytes for s in made.memory.scopes() if s.scope in ("block_0", "block_1", "block_2")]

    assert held(plain_step)[1] == held(plain_step)[2] >= TOKENS * HIDDEN * 2
    assert max(held(checkpointed_step)) < min(held(plain_step))


def test_scopes_lines_and_ops_come_from_the_users_code(plain_step):
    products = [k for k in plain_step.memory.kernels if k.matmul_flops and k.part is Part.FORWARD]
    assert [k.scope for k in products] == [f"block_{n}" for n in (0, 0, 1, 1, 2, 2)] + ["head"]
    assert {k.op for k in products} == {"dot_general"}
    assert all("conftest.py:" in k.source for k in products)


def test_argument_roles_follow_from_readers(plain_step):
    roles = {b.name: b.role for b in plain_step.memory.buffers if b.role in (Role.PARAMETER, Role.OPTIMIZER_STATE)}
    assert roles["params['head']"] is Role.PARAMETER
    assert roles["momentum['head']"] is Role.OPTIMIZER_STATE
    assert {b.name: b.role for b in plain_step.memory.buffers}["batch"] is Role.INPUT


def test_logits_and_gradients_are_found(plain_step):
    logits = [b for b in plain_step.memory.buffers if b.role is Role.LOGITS]
    assert logits and {b.shape[-1] for b in logits} == {VOCABULARY}
    gradients = [b for b in plain_step.memory.buffers if b.role is Role.GRADIENT]
    assert {(512, VOCABULARY)} <= {b.shape for b in gradients}


def test_the_condition_of_a_loop_never_runs_where_the_trip_count_is_known(scanned_step):
    conditions = [kernel for kernel in scanned_step.memory.kernels if kernel.op == "lt"]
    assert conditions
    assert {kernel.count for kernel in conditions} == {0}


def test_stacked_residuals_live_from_forward_to_backward_loop(scanned_step):
    memory = scanned_step.memory
    stacked = [b for b in memory.temporaries if b.role is Role.RESIDUAL and b.shape == (6, TOKENS, HIDDEN)]
    filled = [b for b in stacked if b.op == "dynamic_update_slice"]
    assert filled and set(filled) <= set(memory.held())
    assert all(b.born < memory.backward <= b.dies and b.count == 6 for b in filled)
    # Each takes over the zeros that the loop was entered with, at their place and just when they end.
    assert {(b.offset_bytes, b.born - 1) for b in filled} == {
        (b.offset_bytes, b.dies) for b in set(stacked) - set(filled)
    }


def test_donation_that_did_not_take_is_named(h200):
    def step(state, scale):
        return {"kept": state["kept"] * scale, "widened": state["narrow"].astype(jnp.float32)}

    state = {"kept": jax.ShapeDtypeStruct((1024,), "float32"), "narrow": jax.ShapeDtypeStruct((512, 512), "bfloat16")}
    made = footprint(step, state, jax.ShapeDtypeStruct((), "float32"), target=h200, donate_argnums=0)
    assert made.undonated == (("state['narrow']", 512 * 512 * 2),)


def test_arguments_that_nobody_reads_do_not_shift_the_names(h200):
    made = footprint(
        lambda unused, x, y: x @ y, *(jax.ShapeDtypeStruct((n, n), "float32") for n in (8, 256, 256)), target=h200
    )
    assert [b.name for b in made.memory.buffers if b.role is Role.INPUT] == ["x", "y"]


def test_several_devices_are_read_as_one_of_them(h200x8):
    mesh = h200x8.mesh((8,), ("data",))
    sharded = jax.ShapeDtypeStruct(BATCH.shape, BATCH.dtype, sharding=NamedSharding(mesh, PartitionSpec("data")))
    made = footprint(lambda p, x: jax.grad(loss)(p, x), params(1), sharded, target=h200x8)
    assert made.caveats == ()
    assert made.memory.temp_bytes == made.temp_bytes
    assert [k for k in made.memory.kernels if k.opcode.startswith("all-reduce")]
    assert sum(k.matmul_flops for k in made.memory.kernels) * 8 == 2 * BLOCK_FLOPS + BLOCK_FLOPS // 2 + 3 * HEAD_FLOPS


def test_what_is_offloaded_lies_in_host_memory(h200):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )

    def body(x, weights):
        x = checkpoint_name(x, "x")
        return x + jax.nn.gelu(x @ weights["in"]) @ weights["out"], None

    def offloaded(weights, x):
        return jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights)[0].astype(jnp.float32).sum()

    made = footprint(jax.grad(offloaded), STACKED, BATCH, target=h200)
    memory = made.memory
    on_host = sum(a.size_bytes for a in memory.allocations if a.space is Space.HOST)
    assert on_host == made.host_temp_bytes == 6 * TOKENS * WIDTH * 2
    assert memory.temp_bytes == made.temp_bytes
    assert {b.role for b in memory.buffers if memory.by_index[b.allocation].space is Space.HOST} == {Role.HOST_COPY}


def test_the_cpus_program_is_read_too():
    made = footprint(scan_step, STACKED, BATCH, target="cpu", donate_argnums=0)
    assert made.memory.temp_bytes == made.temp_bytes
    assert len(made.caveats) == 2  # what the CPU backend does to rematerialisation, and to its peak
    assert made.memory.peak_bytes <= made.temp_bytes


def test_a_dump_is_read_without_its_program(dumped):
    memory = memory_from_hlo(dumped)
    assert memory.problems == ()
    assert {b.name for b in memory.buffers if b.role is Role.INPUT} >= {"leaves[0]"}
    named = memory_from_hlo(dumped, argument_paths=("w_in", "w_out", "x"))
    assert {b.name for b in named.buffers if b.role is Role.INPUT} == {"w_in", "w_out", "x"}
