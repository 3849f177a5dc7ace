"""The models of the benchmarks are what their papers say, train at small sizes, and trace at full size."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import COOP, MODELS, PLANNER, TrainingStep, lstm, spos, swin, t5
from benchmarks.models.experts import routes
from benchmarks.models.llama import grouped_attention, rotated
from jaxckpt.ir import Phase
from jaxckpt.trace import trace_step

HEAD = 768 * 50304
"""What an untied head adds to GPT-2 small."""

PARAMETERS = {
    "resnet50": 25_557_032,  # torchvision's resnet50
    "resnet18": 11_689_512,  # torchvision's resnet18
    "bert-large": 335_141_888 + 1_084_220,  # encoder and pooler; its two heads
    "gpt3": 32 * (12 * 4096**2 + 13 * 4096) + (2 * 50304 + 1024 + 2) * 4096,
    "inception-v3": 23_834_568,  # torchvision's inception_v3 without the auxiliary classifier
    "swin-t": 28_288_354,  # table 1 of the paper: 28.3 M
    "bilstm": 2 * (100 + 256 + 1) * 4 * 256 + 2 * 2 * 256 + 2,
    "unet": 31_030_658 + 2 * 9 * 64,  # of one colour; two more
    "gpt2-small": 124_439_808 + 47 * 768 + HEAD,  # 50257 tokens; 50304; the untied head
    "gpt2-medium": 354_823_168 + 47 * 1024 + 1024 * 50304,
    "llama": 1_235_814_400,  # Llama 3.2 1B
    "t5-base": 222_903_552,  # Hugging Face's t5-base
    "vit-b16": 86_567_656,  # torchvision's vit_b_16
    "experts": 124_439_808 + 47 * 768 + HEAD + 12 * (8 * 2 * 3072 * 768 + 8 * 768 - 2 * 3072 * 768 - 3072 - 768),
    "gcn": 110_120,  # the leaderboard of ogbn-arxiv
}

QUICK = {"gcn"}
"""What is traced and trained in every run of the tests; the others take minutes together."""
QUICK_TO_COUNT = {"gcn", "gpt2-small", "resnet18", "bilstm", "vit-b16"}
"""Each of the others is described at full size in a second; what counts and compares is one code for all."""
SLOW_TO_TRACE = SLOW_TO_RUN = set(MODELS) - QUICK
ALIKE = {"gpt3", "gpt2-medium"}
"""At small size these are GPT-2 again."""


def each(*, slow, without=frozenset()):
    """One test for each model."""
    names = [name for name in MODELS if name not in without]
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in names]
    )


@cache
def full(name: str) -> TrainingStep:
    return MODELS[name].step()


def small(name: str) -> TrainingStep:
    return MODELS[name].step(**MODELS[name].small())


def shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param(name, count, marks=[] if name in QUICK_TO_COUNT else [pytest.mark.slow], id=name)
        for name, count in PARAMETERS.items()
    ],
)
def test_parameters_are_counted_as_in_the_literature(name, count):
    assert full(name).parameters == count


@pytest.mark.slow  # it describes the whole supernet
def test_a_path_of_the_supernet_is_as_large_as_its_paper_says():
    choices = spos.choices_of(spos.PATH, blocks=20)
    assert np.bincount(choices).tolist() == [5, 5, 5, 5]
    count = 0
    for name, part in full("spos").args[0]["params"].items():
        on_path = part[f"choice_{choices[int(name.removeprefix('block_'))]}"] if name.startswith("block") else part
        count += sum(leaf.size for leaf in jax.tree.leaves(on_path))
    assert 3.2e6 < count < 3.6e6


def test_tables_name_models():
    assert {*COOP, *PLANNER} <= MODELS.keys()
    assert len(COOP) == 8


@pytest.mark.slow  # each is described at full size
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet50", (115, 224, 224, 3)),
        ("inception-v3", (96, 299, 299, 3)),
        ("spos", (256, 224, 224, 3)),
        ("swin-t", (40, 224, 224, 3)),
        ("unet", (5, 460, 608, 3)),
        ("bert-large", (16, 512)),
        ("gpt3", (2, 1025)),  # a token more than is read: the last is only predicted
        ("bilstm-unrolled", (2048, 128, 100)),
    ],
)
def test_the_eight_have_the_batches_of_the_figures(name, shape):
    assert shape in [leaf.shape for leaf in jax.tree.leaves(full(name).args[2])]


@each(slow=SLOW_TO_TRACE)
def test_full_size_traces_into_a_graph(name):
    step = full(name)
    traced = trace_step(step.step, *step.args, donate_argnums=step.donate_argnums)
    assert traced.phases_source == "names"
    assert len(traced.donated) == len(jax.tree.leaves(step.args[:2]))


@each(slow=SLOW_TO_RUN, without=ALIKE)
def test_loss_falls_at_small_size(name):
    step = small(name)
    variables, state, batch = step.real()
    assert shapes((variables, state, batch)) == shapes(step.args)
    # XLA's own optimisation takes longer than all that is run here.
    update = jax.jit(step.step, compiler_options={"xla_backend_optimization_level": 0})
    losses = []
    for _ in range(5):
        variables, state, loss = update(variables, state, batch)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert shapes((variables, state)) == shapes(step.args[:2])


@pytest.mark.parametrize("name", ["gpt2-small-dropout", "vit-b16-dropout"])
def test_dropout_draws_three_masks_in_every_block(name):
    step = small(name)
    graph = trace_step(step.step, *step.args).graph
    scopes = [op.scope for op in graph.ops if op.primitive == "random_bits" and op.phase is Phase.FORWARD]
    for block in ("block_0", "block_1"):
        assert sum(block in scope for scope in scopes) == 3
    assert len(scopes) == 6


def test_a_switched_supernet_leaves_its_path_to_an_argument():
    sizes = {**spos.small(), "blocks": (2,), "features": (16,), "path": 0b1101}
    fixed, switched = spos.step(**sizes), spos.step(**sizes, switched=True)
    assert shapes(fixed.args) == shapes(switched.args)
    graph = trace_step(switched.step, *switched.args).graph
    assert len({loop.branch.cond for loop in graph.loops if loop.branch is not None}) >= 2 * 2
    assert not any(op.primitive == "cond" for op in trace_step(fixed.step, *fixed.args).graph.ops)


def test_scanned_and_unrolled_time_are_the_same():
    x = jax.random.normal(jax.random.key(0), (3, 5, 4))
    for reverse in (False, True):
        scanned, unrolled = (lstm.Direction(6, reverse, is_unrolled) for is_unrolled in (False, True))
        variables = scanned.init(jax.random.key(1), x)
        np.testing.assert_allclose(scanned.apply(variables, x), unrolled.apply(variables, x), rtol=1e-5, atol=1e-6)


def test_windows_are_put_back_where_they_were():
    x = jnp.arange(2 * 8 * 12 * 3).reshape(2, 8, 12, 3)
    assert (swin.windows_of(x, 4)[0, 0, :, 0] == x[0, :4, :4, 0].reshape(-1)).all()
    assert (swin.image_of(swin.windows_of(x, 4), 8, 12) == x).all()


def test_a_shift_makes_strangers_only_at_the_seam():
    apart = swin.strangers(8, 8, 4, 2)
    assert apart.any(axis=(1, 2)).tolist() == [False, True, True, True]
    assert not apart[:, range(16), range(16)].any()
    assert (swin.offsets(2) == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]).all()


def test_buckets_of_distance_are_fine_near_and_coarse_far():
    causal, both = t5.buckets_of(200, causal=True), t5.buckets_of(200, causal=False)
    assert causal[199, 199 - np.array([0, 1, 15, 16, 198])].tolist() == [0, 1, 15, 16, 31]
    assert (np.diff(causal[199]) <= 0).all()
    assert both[100, [100, 99, 101]].tolist() == [0, 1, 17]
    assert both.max() == 31


def test_experts_take_no_more_than_their_places():
    odds = jax.nn.softmax(jax.random.normal(jax.random.key(0), (2, 16, 4)))
    combine = routes(odds, chosen=2, capacity=3)
    assert ((combine > 0).sum(axis=1) <= 1).all()  # one token a place
    assert ((combine > 0).sum(axis=(2, 3)) <= 2).all()
    roomy = routes(odds, chosen=2, capacity=16)
    np.testing.assert_allclose(roomy.sum(axis=(2, 3)), np.ones((2, 16)), rtol=1e-5)
    best = jax.lax.top_k(odds, 2)[1]
    assert ((roomy.sum(axis=3) > 0) == jax.nn.one_hot(best, 4).sum(axis=2)).all()


def test_grouped_queries_share_keys_and_see_nothing_later():
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 6, heads, 4)) for i, heads in enumerate((4, 2, 2)))
    repeated = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    np.testing.assert_allclose(grouped_attention(q, k, v), repeated, rtol=1e-4, atol=1e-5)


def test_rotary_scores_depend_on_distance_alone():
    x = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (1, 1, 1, 8)), (1, 10, 1, 8))
    turned = rotated(x)[0, :, 0]
    scores = turned @ turned.T
    np.testing.assert_allclose(np.diag(scores, 3), np.full(7, scores[0, 3]), rtol=1e-4)
