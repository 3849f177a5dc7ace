"""The networks of Checkmate's paper as training graphs: a node a layer of Keras, forward and backward.

Costs and bytes are those of the paper's static model: a multiply-accumulate counts one, a layer's backward node costs
twice its forward node, both results are float32, and the memory of parameters and their gradients is constant. A
gradient reads the results of its layer and of the layers that read it, and their gradients.

Source: Jain et al. 2020 (arXiv:1910.02653), sections 4.4, 4.10 and 6.4; layers and their costs as in the artifact of
the paper (github.com/parasj/checkmate, branch mlsys20_artifact, `extraction.py` and `extraction_hooks.py`); U-Net is
`vgg_unet` of github.com/divamgupta/image-segmentation-keras, with 19 classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from jaxckpt.cost import Rates
from jaxckpt.ir import Graph, Kind, Op, Phase, Value
from jaxckpt.solve.baselines.checkmate import Kernels

_FLOAT_BYTES = 4
_UNIT_FLOPS_PER_S = 1e12
RATES = Rates(
    name="multiply-accumulates",
    matmul_flops_per_s=(("float32", _UNIT_FLOPS_PER_S),),
    vector_flops_per_s=_UNIT_FLOPS_PER_S,
    memory_bandwidth_bytes_per_s=1e30,
    host_bandwidth_bytes_per_s=1e30,
    launch_s=0.0,
    memory_bytes=2**40,
)
"""Rates of a device whose seconds are the static costs: 1e12 multiply-accumulates a second, and nothing else."""
_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
_RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
_MOBILENET = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer, for one image.

    Attributes:
      shape: Height, width and channels of its result.
      reads: The layers that it reads, by position; the image is not a layer.
      macs: Multiply-accumulates of its forward node.
      parameters: Number of its parameters.
    """

    shape: tuple[int, int, int]
    reads: tuple[int, ...]
    macs: int
    parameters: int = 0

    @property
    def elements(self) -> int:
        """Elements of its result."""
        return prod(self.shape)


class Layers:
    """Layers in topological order, added one by one; every method returns the new layer's position.

    With `fused`, normalisations and activations are part of the convolution before them, and padding of the one after.
    """

    def __init__(self, image: tuple[int, int], *, fused: bool = False):
        self.layers: list[Layer] = []
        self.image = (*image, 3)
        self.fused = fused

    def conv(self, before: int | None, channels: int, kernel: int, *, stride: int = 1, bias: bool = True) -> int:
        """A convolution with "same" padding."""
        height, width, inputs = self._shape(before)
        shape = (-(-height // stride), -(-width // stride), channels)
        weights = kernel**2 * inputs * channels
        return self._add(shape, (before,), kernel**2 * inputs * prod(shape), weights + bias * channels)

    def depthwise(self, before: int, *, stride: int = 1) -> int:
        """A depthwise convolution of 3 x 3."""
        height, width, channels = self._shape(before)
        shape = (-(-height // stride), -(-width // stride), channels)
        return self._add(shape, (before,), 9 * prod(shape), 9 * channels)

    def dense(self, before: int, units: int) -> int:
        """A fully connected layer."""
        inputs = prod(self._shape(before))
        return self._add((1, 1, units), (before,), inputs * units, (inputs + 1) * units)

    def norm(self, before: int) -> int:
        """A batch normalisation; with `fused` its parameters are left out, a thousandth of all."""
        if self.fused:
            return before
        shape = self._shape(before)
        return self._add(shape, (before,), 4 * prod(shape), 4 * shape[2])

    def relu(self, before: int) -> int:
        """An activation."""
        shape = self._shape(before)
        return before if self.fused else self._add(shape, (before,), prod(shape))

    def pad(self, before: int | None, *, rows: int = 2) -> int | None:
        """Zero padding; the layer after it reads the padded result, and its own shape is that without padding."""
        height, width, channels = self._shape(before)
        return before if self.fused else self._add((height + rows, width + rows, channels), (before,), 0)

    def valid(self, padded: int | None, channels: int, kernel: int, *, stride: int = 1, bias: bool = True) -> int:
        """A convolution without padding of its own, after `pad` of `kernel - 1` rows."""
        if self.fused:
            return self.conv(padded, channels, kernel, stride=stride, bias=bias)
        height, width, inputs = self._shape(padded)
        shape = ((height - kernel) // stride + 1, (width - kernel) // stride + 1, channels)
        weights = kernel**2 * inputs * channels
        return self._add(shape, (padded,), kernel**2 * inputs * prod(shape), weights + bias * channels)

    def valid_depthwise(self, padded: int, *, stride: int) -> int:
        """A depthwise convolution of 3 x 3 without padding of its own."""
        if self.fused:
            return self.depthwise(padded, stride=stride)
        height, width, channels = self._shape(padded)
        shape = ((height - 3) // stride + 1, (width - 3) // stride + 1, channels)
        return self._add(shape, (padded,), 9 * prod(shape), 9 * channels)

    def pool(self, before: int, *, stride: int = 2) -> int:
        """A pooling; the paper counts no arithmetic."""
        height, width, channels = self._shape(before)
        return self._add((height // stride, width // stride, channels), (before,), 0)

    def mean(self, before: int) -> int:
        """A global average pooling."""
        return self._add((1, 1, self._shape(before)[2]), (before,), 0)

    def reshape(self, before: int) -> int:
        """A flattening, reshaping or dropout: a copy without arithmetic."""
        return before if self.fused else self._add(self._shape(before), (before,), 0)

    def upsample(self, before: int) -> int:
        """A nearest-neighbour upsampling by two."""
        height, width, channels = self._shape(before)
        shape = (2 * height, 2 * width, channels)
        return self._add(shape, (before,), prod(shape))

    def concatenate(self, before: int, other: int) -> int:
        """A concatenation of channels."""
        height, width, channels = self._shape(before)
        return self._add((height, width, channels + self._shape(other)[2]), (before, other), 0)

    def add(self, before: int, other: int) -> int:
        """A sum."""
        shape = self._shape(before)
        return self._add(shape, (before, other), 2 * prod(shape))

    def _shape(self, before: int | None) -> tuple[int, int, int]:
        return self.image if before is None else self.layers[before].shape

    def _add(self, shape: tuple[int, int, int], reads: tuple[int | None, ...], macs: int, parameters: int = 0) -> int:
        known = tuple(read for read in reads if read is not None)
        self.layers.append(Layer(shape=shape, reads=known, macs=macs, parameters=parameters))
        return len(self.layers) - 1


def _vgg(net: Layers, blocks: tuple[tuple[int, int], ...]) -> None:
    """VGG of Simonyan and Zisserman 2014."""
    at = None
    for channels, count in blocks:
        for _ in range(count):
            at = net.conv(at, channels, 3)
        assert at is not None
        at = net.pool(at)
    assert at is not None
    at = net.reshape(at)
    for units in (4096, 4096, 1000):
        at = net.dense(at, units)


def _unet(net: Layers) -> None:
    """U-Net with the first four blocks of VGG16 as encoder."""
    at, skips = None, []
    for channels, count in _VGG16[:4]:
        for _ in range(count):
            at = net.conv(at, channels, 3)
        assert at is not None
        at = net.pool(at)
        skips.append(at)
    at = net.norm(net.valid(net.pad(at), 512, 3))
    for channels, skip in zip((256, 128, 64), reversed(skips[:3]), strict=True):
        at = net.concatenate(net.upsample(at), skip)
        at = net.norm(net.valid(net.pad(at), channels, 3))
    net.reshape(net.conv(at, 19, 3))


def _mobilenet(net: Layers) -> None:
    """MobileNet of Howard et al. 2017, version 1."""
    at = net.relu(net.norm(net.valid(net.pad(None), 32, 3, stride=2, bias=False)))
    for channels, stride in _MOBILENET:
        if stride == 1:
            at = net.depthwise(at)
        else:
            padded = net.pad(at, rows=1)
            assert padded is not None
            at = net.valid_depthwise(padded, stride=2)
        at = net.relu(net.norm(at))
        at = net.relu(net.norm(net.conv(at, channels, 1, bias=False)))
    at = net.reshape(net.reshape(net.mean(at)))
    net.relu(net.reshape(net.conv(at, 1000, 1)))


def _resnet50(net: Layers) -> None:
    """ResNet-50 of He et al. 2016."""
    at = net.relu(net.norm(net.valid(net.pad(None, rows=6), 64, 7, stride=2)))
    padded = net.pad(at)
    assert padded is not None
    at = net.pool(padded)
    for channels, count, first_stride in _RESNET50:
        for number in range(count):
            stride = first_stride if number == 0 else 1
            shortcut = net.norm(net.conv(at, 4 * channels, 1, stride=stride)) if number == 0 else at
            inner = net.relu(net.norm(net.conv(at, channels, 1, stride=stride)))
            inner = net.relu(net.norm(net.conv(inner, channels, 3)))
            at = net.relu(net.add(net.norm(net.conv(inner, 4 * channels, 1)), shortcut))
    net.dense(net.mean(at), 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network of the paper: its layers, the batch of the paper's budgets, and the size of an image."""

    build: Callable[[Layers], None]
    batch: int
    image: tuple[int, int] = (224, 224)
    fused: bool = False

    def layers(self) -> tuple[Layer, ...]:
        """The layers in topological order."""
        net = Layers(self.image, fused=self.fused)
        self.build(net)
        return tuple(net.layers)


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "VGG16": Network(build=lambda net: _vgg(net, _VGG16), batch=256),
        "VGG19": Network(build=lambda net: _vgg(net, _VGG19), batch=256),
        "U-Net": Network(build=_unet, batch=32, image=(416, 608)),
        "MobileNet": Network(build=_mobilenet, batch=512),
        "MobileNet, fused": Network(build=_mobilenet, batch=512, fused=True),
        "ResNet50": Network(build=_resnet50, batch=256),
        "ResNet50, fused": Network(build=_resnet50, batch=256, fused=True),
    }
)
"""By name; "fused" has a node for each convolution with its normalisation and activation."""


def constant_bytes(layers: tuple[Layer, ...]) -> int:
    """Bytes of parameters and their gradients, which all schedules hold."""
    return 2 * _FLOAT_BYTES * sum(layer.parameters for layer in layers)


def training_kernels(layers: tuple[Layer, ...], batch: int) -> Kernels:
    """Forward nodes, the loss, and backward nodes in reverse order."""
    count = len(layers)
    size = 2 * count + 1
    reads: list[set[int]] = [set() for _ in range(size)]
    for i, layer in enumerate(layers):
        reads[i].update(layer.reads)
        reads[size - 1 - i].add(i)
        for before in layer.reads:
            reads[size - 1 - before].update((i, size - 1 - i))
    reads[count].add(count - 1)
    reads[count + 1].add(count)
    forward_s = [batch * layer.macs / _UNIT_FLOPS_PER_S for layer in layers]
    result_bytes = [batch * _FLOAT_BYTES * layer.elements for layer in layers]
    return Kernels(
        cost_s=(*forward_s, 0.0, *(2 * seconds for seconds in reversed(forward_s))),
        size_bytes=(*result_bytes, _FLOAT_BYTES * batch, *reversed(result_bytes)),
        reads=tuple(tuple(sorted(each)) for each in reads),
    )


def training_graph(kernels: Kernels) -> Graph:
    """The same nodes as ops of a step that nothing is fused into, for `RATES`.

    The step's result is a scalar that reads the last gradient: results are not temporaries, and the gradient is one.
    """
    count = len(kernels.cost_s)
    middle = count // 2
    sizes = (_FLOAT_BYTES, *kernels.size_bytes, _FLOAT_BYTES)
    values = tuple(
        Value(id=i, shape=(each // _FLOAT_BYTES,), dtype="float32", size_bytes=each) for i, each in enumerate(sizes)
    )
    flops = [seconds * _UNIT_FLOPS_PER_S for seconds in kernels.cost_s]
    reads = [tuple(read + 1 for read in each) or (0,) for each in kernels.reads]
    phases = [Phase.FORWARD] * (middle + 1) + [Phase.BACKWARD] * middle
    ops = [_op(i, reads[i], phases[i], flops[i]) for i in range(count)]
    ops.append(_op(count, (count,), Phase.UPDATE, 0.0))
    graph = Graph(values=values, ops=tuple(ops), inputs=(0,), outputs=(count + 1,), donated=frozenset())
    graph.validate()
    return graph


def _op(number: int, reads: tuple[int, ...], phase: Phase, flops: float) -> Op:
    return Op(
        id=number,
        primitive="layer",
        kind=Kind.OPAQUE,
        reads=reads,
        writes=(number + 1,),
        scope="",
        phase=phase,
        flops=flops,
    )
