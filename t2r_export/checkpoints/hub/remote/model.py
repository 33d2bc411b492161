"""The model that transformers loads, and its states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from t2r_export.checkpoints.hub.remote.base import Norm, Options, Rope, States, Tokens, wide
from t2r_export.checkpoints.hub.remote.layers import Block

CHUNK = 128  # tokens computed at once, which bounds memory for any length


class T2RConfig(PretrainedConfig):
    """The layers as t2r-export describes them (`t2r["config"]`), and the frequencies of their rotations."""

    model_type = "t2r"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, t2r: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.t2r = t2r or {}
        super().__init__(**kwargs)


class T2RCache:
    """The states of a text by name (`S.0`, `z.0`, `k.1` …), as t2r-export's graphs have them."""

    is_compileable = False

    def __init__(self, states: States) -> None:
        self.states, self.tokens = states, 0  # `tokens` includes padding

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens read."""
        return self.tokens

    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self.states.values())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the states of these texts, for beam search."""
        self.states = {name: state.index_select(0, beam_idx) for name, state in self.states.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each text's states."""
        self.states = {name: state.repeat_interleave(repeats, 0) for name, state in self.states.items()}

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError("a recurrent state forgets no tokens: keep a copy of the states before them")


class Positions(nn.Module):
    """Positions that are added to the embeddings: a learned table, sines, or none."""

    def __init__(self, options: Options | None, width: int) -> None:
        super().__init__()
        self.kind, self.width = None if options is None else options["kind"], width
        if options is not None and self.kind == "learned":
            self.table = nn.Embedding(options["max_positions"], width)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x (B, T, D), position (B, T)."""
        if self.kind == "learned":
            if int(position.max()) >= self.table.num_embeddings:
                raise ValueError(f"the model has {self.table.num_embeddings} positions; the text is longer")
            rows: Tensor = self.table(position.clamp(min=0))
            return x + rows
        if self.kind == "sinusoidal":
            steps = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
            angles = position[..., None].double() * 10000.0 ** (-steps / self.width)
            return x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
        return x


class T2RForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder with explicit states. `past_key_values` is a `T2RCache`, which a call updates in place."""

    blocks: Sequence[Any]
    config_class = T2RConfig
    base_model_prefix = "model"
    _is_stateful = True
    _tied_weights_keys = {"head.weight": "embedding.weight"}

    def __init__(self, config: T2RConfig) -> None:
        super().__init__(config)
        c = self.options = config.t2r["config"]
        width, found = c["width"], config.t2r["rotations"]
        tables = [Rope(one["frequencies"], one["magnitude"]) for one in found["tables"]]
        known = [None, *tables]
        ropes = [[(known[q], known[features]) for q, features in layer] for layer in found["layers"]]  # 0: none
        self.embedding = nn.Embedding(c["vocab_size"], width)
        self.positions = Positions(c["positions"], width)
        self.embedding_norm = Norm(c["embedding_norm"], width)
        layers = zip(c["layers"], ropes, strict=True)
        self.blocks = nn.ModuleList(Block(layer, width, own) for layer, own in layers)  # type: ignore[assignment]
        self.norm = Norm(c["last_norm"], width)
        self.head = nn.Linear(width, c["vocab_size"], bias=c["head_bias"])
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the folder."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.head = new_embeddings

    def empty_cache(self, batch: int) -> T2RCache:
        """The initial states."""
        weight = self.head.weight
        states = {
            f"{name}.{layer}": torch.zeros(batch, *shape, dtype=wide(weight), device=weight.device)
            for layer, block in enumerate(self.blocks)
            for name, shape in block.shapes().items()
        }
        states["position"] = torch.zeros(batch, dtype=torch.int32, device=weight.device)
        return T2RCache(states)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: T2RCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, T, vocabulary) for ids (B, T).

        Args:
            attention_mask: (B, T), or with the columns of earlier calls before them; 0 for padding, which may precede
                a text, and may follow it if no cache is requested.
            past_key_values: the current states; None: the initial ones.
            labels: (B, T), as in transformers.
            logits_to_keep: number of last tokens, or their indices; 0: all.

        Raises:
            ValueError: padding within or after a text whose states are requested.
        """
        cache = self.empty_cache(len(input_ids)) if past_key_values is None else past_key_values
        real = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :].bool()
        if real is not None and bool(real.all()):
            real = None
        behind = real is not None and (cache.tokens > 0 or bool((real[:, :-1] & ~real[:, 1:]).any()))
        if behind and (use_cache or past_key_values is not None):
            raise ValueError("padding stands before a text: a state cannot pass over what is behind one")
        rows = [self._read(ids, masks, cache) for ids, masks in chunks(input_ids, real)]
        x = torch.cat(rows, 1)
        if isinstance(logits_to_keep, int):
            x = x[:, -logits_to_keep:] if logits_to_keep else x
        else:
            x = x[:, logits_to_keep]
        logits = self.head(x) * self.options["logit_scale"]
        cap = self.options["logit_softcap"]
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.options["vocab_size"], **kwargs)
        kept = cache if not behind and (use_cache or use_cache is None) else None
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=kept)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

    def _read(self, ids: Tensor, real: Tensor | None, cache: T2RCache) -> Tensor:
        """Normalized rows (B, T, D) of at most CHUNK tokens; updates the cache."""
        tokens = Tokens(ids, cache.states["position"], real)
        x = self.embedding(ids) * self.options["embedding_scale"]
        x = self.embedding_norm(self.positions(x, tokens.position))
        after: States = {"position": tokens.after.int()}
        for layer, block in enumerate(self.blocks):
            state = {name: cache.states[f"{name}.{layer}"] for name in block.shapes()}
            x, new = block(x, state, tokens)
            after |= {f"{name}.{layer}": value for name, value in new.items()}
        cache.states, cache.tokens = after, cache.tokens + ids.shape[1]
        normed: Tensor = self.norm(x)
        return normed


def chunks(ids: Tensor, real: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    """Tokens and their masks, CHUNK at a time."""
    parts = ids.split(CHUNK, 1)
    masks = [None] * len(parts) if real is None else real.split(CHUNK, 1)
    return list(zip(parts, masks, strict=True))
