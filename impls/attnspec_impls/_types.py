"""The shapes that the signatures here share."""

from jaxtyping import Bool, Float
from torch import Tensor

# Two axes or four: three could mean batch or heads, and the contract refuses to guess.
Mask = Bool[Tensor, "#q_len #kv_len"] | Bool[Tensor, "#batch #heads #q_len #kv_len"]
Bias = Float[Tensor, "#q_len #kv_len"] | Float[Tensor, "#batch #heads #q_len #kv_len"]
Window = tuple[int, int]

Weights = Float[Tensor, "batch heads q_len kv_len"]
HeadOutput = Float[Tensor, "batch heads q_len d_v"]
ModelOutput = Float[Tensor, "batch q_len d_model"]
