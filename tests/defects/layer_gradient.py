"""Layers whose gradients are wrong."""

from torch.nn.functional import linear

from .bank import defect
from .reference import Layer


@defect("gradient", "common learner error", "gradient.inputs", case="backward", place="project_keys")
class KeyInputDetached(Layer):
    """Nothing flows back to the input through the keys."""

    def project_keys(self, x):
        return super().project_keys(x.detach())


@defect("gradient", "common learner error", "gradient.parameters", case="backward", place="project_output")
class OutputWeightDetached(Layer):
    """The output projection gets no gradient."""

    def project_output(self, merged):
        return linear(merged, self.W_o.weight.detach(), self.W_o.bias)


@defect(
    "gradient",
    "common learner error",
    "gradient.parameters",
    "gradient.inputs",
    case="backward",
    place="merge_heads",
)
class HeadGradientsHalved(Layer):
    """Half of each head's output is cut off from the graph."""

    def merge_heads(self, mixed):
        return super().merge_heads(mixed * 0.5 + mixed.detach() * 0.5)


@defect(
    "gradient",
    "common learner error",
    "gradient.live",
    "gradient.parameters",
    case="backward",
    place="project_values",
)
class ValueBiasDetached(Layer):
    """The bias of the values gets no gradient."""

    def project_values(self, x):
        bias = self.W_v.bias
        return linear(x, self.W_v.weight, None if bias is None else bias.detach())
