"""Configs: how a class reads its sizes from one, and what it leaves unread."""

from dataclasses import dataclass

from construction import attend, heads_of, merged
from torch import nn


class Attention(nn.Module):
    """What the classes below share once they have read their sizes."""

    scale = None

    def set_up(self, width, heads, bias=True, dropout=0.0):
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (heads_of(p(x), self.heads) for p in (self.wq, self.wk, self.wv))
        return self.wo(merged(attend(q, k, v, mask, scale=self.scale, dropout=self.dropout)))


class ByGet(Attention):
    """A dictionary whose keys have defaults."""

    def __init__(self, config: dict):
        super().__init__()
        self.set_up(config["hidden_dim"], config.get("num_heads", 8), config.get("bias", True))


class ByGetUnscaled(ByGet):
    """The mistake: scores are not scaled."""

    scale = 1.0


class ByPop(Attention):
    """A dictionary that is taken apart."""

    def __init__(self, config):
        super().__init__()
        self.set_up(config.pop("embed_dim"), config.pop("n_heads", 8))


class ByName(Attention):
    """An object, asked for names that it may lack; some of them are no sizes."""

    def __init__(self, config):
        super().__init__()
        settings = config
        heads = getattr(settings, "num_attention_heads", 8)
        self.flavour = getattr(settings, "flavour", "plain")
        self.kind = settings.kind if hasattr(settings, "kind") else "full"
        self.set_up(vars(settings)["hidden_size"], heads, dropout=vars(settings).get("dropout", 0.1))


class ByNameAndKey(Attention):
    """An object that answers to keys as well."""

    def __init__(self, cfg):
        super().__init__()
        self.set_up(cfg.d_model, cfg.get("n_heads", 8), cfg["bias"])


class Inner(Attention):
    """Reads what is handed down to it under another name."""

    def __init__(self, settings_of_it):
        super().__init__()
        self.set_up(settings_of_it.d_model, settings_of_it.n_heads)


class HandedDown(nn.Module):
    """Reads nothing itself."""

    def __init__(self, cfg):
        super().__init__()
        self.inner = Inner(settings_of_it=cfg)

    def forward(self, x, mask=None):
        return self.inner(x, mask)


@dataclass
class SharedConfig:
    """One for all layers of a model: not every field is for the attention."""

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    drop_path: float = 0.0
    is_causal: bool = False


class Shared(Attention):
    """It has no dropout and no causality, whatever the config has."""

    def __init__(self, cfg: SharedConfig):
        super().__init__()
        self.cfg = cfg
        self.set_up(cfg.embed_dim, self.cfg.num_heads)


class SharedForgotten(Attention):
    """The mistake: a dropout is read, and then forgotten."""

    def __init__(self, cfg: SharedConfig):
        super().__init__()
        self.rate = cfg.dropout
        self.set_up(cfg.embed_dim, cfg.num_heads)
