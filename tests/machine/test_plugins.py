"""Compile-only devices appear beside the running jax and leave it as it was."""

import os
import pathlib
import subprocess
import sys
import threading

import jax
import pytest

from jaxckpt import _compat
from jaxckpt._errors import TargetError
from jaxckpt.machine import Target

BESIDE_JAX = """
import jax, jax.numpy as jnp
before = None
if {first}:
    before = jax.devices(), jax.default_backend()
from jaxckpt.machine import Target
devices = Target("h200").devices
from jax._src import xla_bridge
registered = "cuda" in xla_bridge._backend_factories
assert devices[0].device_kind == "NVIDIA H200", devices
at_target = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=Target("h200").sharding)
kernels = [
    lambda x: jax.random.bits(jax.random.key(x[0, 0].astype(int)), (100,)),
    jnp.linalg.cholesky, jnp.linalg.eigh, jnp.sort, jnp.cumsum, jnp.fft.fft2,
    lambda x: jax.lax.conv(x[None, None], jnp.ones((4, 1, 3, 3)), (1, 1), "SAME"),
    lambda x: x @ x,
]
for kernel in kernels[{first_kernel}:]:
    assert jax.jit(kernel).lower(at_target).compile().memory_analysis().argument_size_in_bytes == 2**14
after = jax.devices(), jax.default_backend()
assert before is None or before == after, (before, after)
assert jax.default_backend() == "cpu" and {{device.platform for device in jax.devices()}} == {{"cpu"}}
assert ("cuda" in xla_bridge._backend_factories) == registered
assert float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((3, 3)))) == 27.0
print("registered" if registered else "beside")
"""

NO_GPU = not pathlib.Path("/dev/nvidia0").exists()


@pytest.mark.skipif(not NO_GPU, reason="about machines without a GPU")
@pytest.mark.parametrize("platforms", ["", "cpu"])
@pytest.mark.parametrize("jax_first", [False, True])
def test_compiling_for_a_gpu_leaves_jax_as_it_was(cuda_compiler, platforms, jax_first):
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    if platforms:
        environment["JAX_PLATFORMS"] = platforms
    # All kernels once; whether one compiles depends on neither.
    code = BESIDE_JAX.format(first=jax_first, first_kernel=0 if jax_first and not platforms else -1)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ALREADY_EXISTS" not in done.stderr  # jax's own registration came first
    if platforms:
        assert done.stdout.strip() == "registered"
    if not jax_first:
        assert "cuDNN" not in done.stderr  # jax's traceback about the missing GPU is held back


def test_the_devices_of_a_target_are_the_same_at_every_call(cuda_compiler):
    devices = Target("h200:8").devices
    assert Target("h200:1x8").devices is devices
    assert len(set(devices)) == 8
    assert all(map(_compat.is_compile_only, devices))
    assert not any(map(_compat.is_compile_only, jax.devices("cpu")))


def test_threads_that_ask_together_get_the_same_devices(cuda_compiler):
    found = []
    threads = [threading.Thread(target=lambda: found.append(Target("a100-40:3").devices)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(devices is found[0] for devices in found)


def test_two_topologies_of_the_compiler_are_not_equal(cuda_compiler):
    from jaxckpt.machine.devices import target_config

    config = target_config(Target("h200").facts)
    once, again = (_compat.cuda_topology_devices(config, "1x1x1") for _ in range(2))
    assert once != again


def test_hosts_are_processes_and_devices_are_numbered_through(cuda_compiler):
    devices = Target("h200:64x8").devices
    assert [device.id for device in devices] == list(range(512))
    assert [device.process_index for device in devices] == [number // 8 for number in range(512)]


def test_a_mesh_is_filled_row_by_row(cuda_compiler):
    target = Target("h200:8")
    mesh = target.mesh((2, 2), ("data", "model"))
    assert mesh.axis_names == ("data", "model")
    assert [device.id for device in mesh.devices.flat] == [0, 1, 2, 3]
    assert mesh == target.mesh((2, 2), ("data", "model"))
    assert target.sharding.device_set == {target.devices[0]}


def test_every_shipped_gpu_is_accepted_by_the_compiler(cuda_compiler):
    for name in (
        "h200",
        "h100",
        "h100-pcie",
        "a100-80",
        "a100-40",
        "b200",
        "gb200",
        "rtx-pro-6000",
    ):
        target = Target(name)
        assert target.devices[0].device_kind == target.facts.device_kinds[0]
        assert target.platform == "cuda"
        assert target.compile_only
        assert target.compiler_version == cuda_compiler.version


def test_every_shipped_tpu_is_accepted_and_a_device_is_a_chip(tpu_compiler):
    names = ["v5e", "v6e", "v4", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "v5e:2x4", "v5p:2x2x4"]
    if jax.__version_info__ >= (0, 12):
        names.append("v5e:1x4")  # the libtpu of jax 0.10 has no hosts of one row
    for name in names:
        target = Target(name)
        assert len(target.devices) == target.device_count
        assert len({device.process_index for device in target.devices}) == target.host_count
        assert target.devices[0].device_kind in target.facts.device_kinds


def test_an_impossible_topology_is_refused_by_the_compiler(tpu_compiler):
    with pytest.raises(TargetError) as caught:
        _ = Target("v5e:3x3").devices
    assert "chips_per_host_bounds" in str(caught.value)
    assert "such as 1x1, 2x2" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_plugin_is_found_without_importing_it(cuda_compiler):
    name, library = _compat.cuda_plugin()
    assert name in _compat.CUDA_PLUGINS
    assert library.exists()
