"""What the networks of convolutions here are made of: a convolution and its batch normalisation, in float32."""

import flax.linen as nn
import jax


class ConvNorm(nn.Module):
    """A convolution without a bias, batch normalisation, and ReLU unless told otherwise.

    Attributes:
      features: Channels made.
      kernel: Its two sizes, odd.
      stride: Of both axes.
      padded: Adds half a kernel of zeros on each side; otherwise the image shrinks.
      groups: Parts of the channels that are convolved apart.
      affine: Whether the normalisation has parameters.
      relu: Whether ReLU ends it.
      epsilon: Of the normalisation.
    """

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padded: bool = True
    groups: int = 1
    affine: bool = True
    relu: bool = True
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        padding = [(side // 2, side // 2) for side in self.kernel] if self.padded else "VALID"
        x = nn.Conv(
            self.features,
            self.kernel,
            strides=self.stride,
            padding=padding,
            feature_group_count=self.groups,
            use_bias=False,
        )(x)
        x = nn.BatchNorm(
            use_running_average=False,
            momentum=0.9,
            epsilon=self.epsilon,
            use_scale=self.affine,
            use_bias=self.affine,
        )(x)
        return nn.relu(x) if self.relu else x
