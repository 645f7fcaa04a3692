"""Floating point operations of a training token, what GPUs can do at most, and the memory that training needs."""

from __future__ import annotations

from dataclasses import dataclass

from shardprep.errors import ConfigError

BYTES_TRAINED = 16  # mixed precision Adam: 2 + 2 + 12, Rajbhandari et al., "ZeRO", SC 2020, section 3.1
BYTES_FROZEN = 2  # bf16


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by the name that NVML says, or a part of it."""

    name: str
    peak_flops: float  # dense, bf16 (fp16 where there is no bf16), without sparsity
    memory_bytes: int
    source: str


_GB = 10**9
GPUS = (
    Gpu("T4", 65e12, 16 * _GB, "NVIDIA T4 datasheet: 65 TFLOPS FP16; it has no bf16"),
    Gpu("V100", 125e12, 16 * _GB, "NVIDIA V100 datasheet: 125 TFLOPS FP16 (SXM2); it has no bf16"),
    Gpu("A10G", 70e12, 24 * _GB, "NVIDIA A10G datasheet (AWS): 70 TFLOPS BF16, 140 with sparsity"),
    Gpu("A10", 125e12, 24 * _GB, "NVIDIA A10 datasheet: 125 TFLOPS BF16, 250 with sparsity"),
    Gpu("L4", 121e12, 24 * _GB, "NVIDIA L4 datasheet: 242 TFLOPS BF16 with sparsity"),
    Gpu("L40S", 362e12, 48 * _GB, "NVIDIA L40S datasheet: 362 TFLOPS BF16, 733 with sparsity"),
    Gpu("A100", 312e12, 40 * _GB, "NVIDIA A100 datasheet: 312 TFLOPS BF16, 624 with sparsity; also with 80 GB"),
    Gpu("H100 PCIe", 756e12, 80 * _GB, "NVIDIA H100 datasheet, PCIe: 1,513 TFLOPS BF16 with sparsity"),
    Gpu("H100", 989e12, 80 * _GB, "NVIDIA H100 datasheet, SXM: 1,979 TFLOPS BF16 with sparsity"),
    Gpu("H200", 989e12, 141 * _GB, "NVIDIA H200 datasheet, SXM: 1,979 TFLOPS BF16 with sparsity"),
)


def gpu_named(name: str) -> Gpu | None:
    """Return the GPU of the table whose name is the longest in this one, such as "NVIDIA A10G"; None if there is none."""
    words = name.lower().replace("-", " ").split()
    known = [gpu for gpu in GPUS if set(gpu.name.lower().split()) <= set(words)]
    return max(known, key=lambda gpu: len(gpu.name), default=None)


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained, in numbers.

    params         parameters that multiply: all but those of an embedding that is only looked up
    trainable      of the parameters; None: all
    frozen_lower   parameters below the lowest trainable one, where no gradient goes
    layers, width  for attention: layers, and heads x head size; None: attention is left out
    checkpointing  activations are computed again in the backward pass

    Raises ConfigError if the numbers cannot be.
    """

    params: float
    trainable: float | None = None
    frozen_lower: float = 0
    layers: int | None = None
    width: int | None = None
    checkpointing: bool = False

    def __post_init__(self) -> None:
        if not self.params > 0:
            raise ConfigError(f"--params must be above 0, got {self.params:g}")
        if self.trainable is not None and not self.trainable > 0:
            raise ConfigError(f"--trainable must be above 0, got {self.trainable:g}")
        if not 0 <= self.frozen_lower < self.params:
            raise ConfigError(f"--frozen-lower must be in [0, --params), got {self.frozen_lower:g} of {self.params:g}")
        if self.weights > self.params - self.frozen_lower:
            raise ConfigError(
                f"--trainable {self.weights:g} is more than the {self.params - self.frozen_lower:g} parameters that a gradient"
                " reaches (--params, adapters included, less --frozen-lower)"
            )
        if (self.layers is None) != (self.width is None):
            raise ConfigError("attention needs both --layers and --width, or none of them")
        if self.layers is not None and self.width is not None and min(self.layers, self.width) < 1:
            raise ConfigError(f"--layers and --width must be at least 1, got {self.layers} and {self.width}")

    @property
    def weights(self) -> float:
        """Return the trainable parameters; without a number all that a gradient reaches."""
        return self.params - self.frozen_lower if self.trainable is None else self.trainable

    def flops_per_token(self, length: float) -> tuple[float, float]:
        """Return the operations of a token of sequences of this length: of the model, and of the hardware.

        Forward 2 N (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1) and 4 L d T of attention;
        backward to the activations the same for parameters and twice for attention, above the frozen lower part;
        backward to the weights 2 for each trainable parameter. Trained in full: 6 N + 12 L d T (Chowdhery et al.,
        "PaLM", 2022, appendix B). The hardware's count has what checkpointing computes again: a forward pass above
        the frozen lower part.
        """
        attention = 4.0 * (self.layers or 0) * (self.width or 0) * length
        reached = 1 - self.frozen_lower / self.params
        forward = 2 * self.params + attention
        model = forward + reached * (2 * self.params + 2 * attention) + 2 * self.weights
        return model, model + (reached * forward if self.checkpointing else 0.0)

    @property
    def least_bytes(self) -> float:
        """Return the memory of weights, gradients and Adam's moments on one device, without activations."""
        return BYTES_TRAINED * self.weights + BYTES_FROZEN * (self.params - self.weights)
