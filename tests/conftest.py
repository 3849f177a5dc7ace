"""What every test runs under: eight CPU devices, no accelerator looked for, examples that do not change by themselves."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from hypothesis import HealthCheck, settings  # noqa: E402  (jax reads the variables above when it is imported)

settings.register_profile(
    "jaxckpt",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("jaxckpt")
