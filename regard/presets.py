"""Named configs: each published model as settings, with its paper and its idea in a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Part = dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """Settings under a name."""

    paper: str
    idea: str
    settings: Part


def _recurrent(cell: str, encoder: Part, decoder: Part, **model: Any) -> Part:
    return {"model": {**model, "encoder": {"kind": cell, **encoder}, "decoder": {"kind": cell, **decoder}}}


def _blocks(layers: int, heads: int, d_ff: int, **options: Any) -> Part:
    return {"kind": "transformer", "layers": layers, "heads": heads, "d_ff": d_ff, **options}


def _transformer(layers: int, heads: int, d_ff: int, *, model: Part, **options: Any) -> Part:
    part = _blocks(layers, heads, d_ff, **options)
    return {"model": {"share_embeddings": True, **model, "encoder": dict(part), "decoder": dict(part)}}


def _language_model(decoder: Part, **model: Any) -> Part:
    return {"source": {"kind": "none"}, "model": {**model, "encoder": {"kind": "none"}, "decoder": decoder}}


def _captions(decoder: Part, **model: Any) -> Part:
    return {
        "source": {"kind": "image"},
        "model": {
            **model,
            "encoder": {"kind": "stem", "stem": {"kind": "convolution"}},
            "decoder": {"kind": "lstm", **decoder},
        },
    }


def _predicted(target: str, body: Part) -> Part:
    """Another head on the body of a preset that reads plain text."""
    return {"source": {"kind": "text"}, "target": {"kind": target}, "model": body["model"]}


def _masked(blocks: Part, **model: Any) -> Part:
    return {"source": {"kind": "none"}, "model": {**model, "decoder": {"kind": "none"}, "encoder": blocks}}


_GPT = _language_model(_blocks(12, 12, 3072, norm="post", positions="learned", activation="gelu"), d_model=768)
_BERT = _masked(_blocks(12, 12, 3072, norm="post", positions="learned", activation="gelu"), d_model=768)
_BERT_MINI = _masked(_blocks(3, 4, 512, positions="learned", activation="gelu"), d_model=128)
_RADFORD = "Radford et al. 2018: Improving Language Understanding by Generative Pre-Training"
_DEVLIN = "Devlin et al. 2019: BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
# The context goes into the recurrence, as published; where a place is drawn, it goes to the output alone, so that a
# draw bears on one word and can be credited with it.
_XU = "Xu et al. 2015: Show, Attend and Tell: Neural Image Caption Generation with Visual Attention"
_VASWANI = "Vaswani et al. 2017: Attention Is All You Need"

PRESETS: dict[str, Preset] = {
    # Language models
    "rnn-lm": Preset(
        "Mikolov et al. 2010: Recurrent neural network based language model",
        "each word given all before it, in one vector",
        _language_model({"kind": "rnn"}, d_model=256),
    ),
    "lstm-lm": Preset(
        "Zaremba, Sutskever, Vinyals 2014: Recurrent Neural Network Regularization",
        "a language model with gates; dropout between layers, not between steps",
        _language_model({"kind": "lstm", "layers": 2}, d_model=650, dropout=0.5),
    ),
    "gru-lm": Preset(
        "Chung et al. 2014: Empirical Evaluation of Gated Recurrent Neural Networks on Sequence Modeling",
        "a language model with two gates instead of three",
        _language_model({"kind": "gru"}, d_model=512),
    ),
    "gpt": Preset(
        _RADFORD,
        "the Transformer's decoder alone",
        _GPT,
    ),
    "gpt-label": Preset(
        f"{_RADFORD} (3.2)",
        "its last vector predicts a label; the language model learns on beside it (start.decoder names a trained one)",
        {**_predicted("label", _GPT), "training": {"objective": {"language": 0.5}}},
    ),
    "gpt-mini": Preset(
        "Radford et al. 2018, as small as will do",
        "minutes on a CPU",
        _language_model(_blocks(3, 4, 512, positions="learned", activation="gelu"), d_model=128),
    ),
    "llama2023": Preset(
        "Touvron et al. 2023: LLaMA: Open and Efficient Foundation Language Models (its options, a small size)",
        "rotary positions, RMSNorm and a gated feed-forward part",
        _language_model(
            _blocks(12, 12, 2048, normalize="rms", positions="rotary", activation="silu", gated=True),
            d_model=768,
            dropout=0.0,
            tie_output=False,
        ),
    ),
    "alibi2022": Preset(
        "Press, Smith, Lewis 2022: Train Short, Test Long: Attention with Linear Biases",
        "far is penalised; reads longer texts than it was trained on",
        _language_model(_blocks(12, 12, 3072, positions="alibi"), d_model=768),
    ),
    # One network for both
    "one-lstm": Preset(
        "Rocktäschel et al. 2016: Reasoning about Entailment with Neural Attention (its conditional encoding)",
        "source, <sep> and target through one LSTM; the state at <sep> is the encoding",
        {"model": {"d_model": 512, "encoder": {"kind": "none"}, "decoder": {"kind": "lstm", "layers": 2}}},
    ),
    "one-transformer": Preset(
        "Liu et al. 2018: Generating Wikipedia by Summarizing Long Sequences",
        "source, <sep> and target through one decoder",
        {"model": {"d_model": 512, "encoder": {"kind": "none"}, "decoder": _blocks(6, 8, 2048)}},
    ),
    # Recurrent encoder-decoders
    "sutskever2014": Preset(
        "Sutskever, Vinyals, Le 2014: Sequence to Sequence Learning with Neural Networks",
        "deep LSTMs; the reversed source's last state is all the decoder gets",
        _recurrent(
            "lstm",
            {"layers": 4, "bidirectional": False, "reverse": True},
            {"layers": 4, "context": "last", "bridge": "copy"},
            d_model=1000,
            tie_output=False,
        ),
    ),
    "cho2014": Preset(
        "Cho et al. 2014: Learning Phrase Representations using RNN Encoder-Decoder",
        "gated units; the encoding enters the decoder at every step",
        _recurrent("gru", {"bidirectional": False}, {"context": "every"}, d_model=1000, tie_output=False),
    ),
    "bahdanau2015": Preset(
        "Bahdanau, Cho, Bengio 2015: Neural Machine Translation by Jointly Learning to Align and Translate",
        "additive attention over a bidirectional encoder, into the recurrence",
        _recurrent("gru", {}, {"score": "additive", "place": "recurrence"}, d_model=1000, tie_output=False),
    ),
    "luong2015": Preset(
        "Luong, Pham, Manning 2015: Effective Approaches to Attention-based Neural Machine Translation",
        "bilinear attention from the new state, joined to it before the output, and fed back in",
        _recurrent(
            "lstm",
            {"layers": 4, "bidirectional": False},
            {"layers": 4, "score": "bilinear", "place": "feeding", "bridge": "copy"},
            d_model=1000,
            tie_output=False,
            dropout=0.2,
        ),
    ),
    "chen2018": Preset(
        "Chen et al. 2018: The Best of Both Worlds (RNMT+, without its layer norm and residuals)",
        "several heads of additive attention over a recurrent encoder",
        _recurrent(
            "lstm",
            {"layers": 6},
            {"layers": 8, "score": "additive", "place": "recurrence", "heads": 4},
            d_model=1024,
            dropout=0.3,
        ),
    ),
    "hard2015": Preset(
        f"{_XU} (4.1, over text)",
        "attends to one place, drawn at random, and learns where by trial",
        _recurrent("lstm", {}, {"score": "additive", "place": "output", "hard": True}, d_model=256),
    ),
    "attentive-small": Preset(
        "Luong, Pham, Manning 2015, small, with a bidirectional encoder",
        "the recurrent model for small corpora and small machines",
        _recurrent("lstm", {}, {"score": "bilinear", "place": "feeding"}, d_model=256, dropout=0.2),
    ),
    # Transformers
    "transformer-mini": Preset(
        "Vaswani et al. 2017, as small as will do: the model of `regard demo`",
        "two narrow blocks a side; minutes on a CPU",
        _transformer(2, 4, 512, model={"d_model": 128}),
    ),
    "transformer-tiny": Preset(
        "Vaswani et al. 2017, at the size of Wu et al. 2021 for small corpora",
        "four narrow blocks a side; strong on tens of thousands of pairs",
        _transformer(4, 4, 256, model={"d_model": 128, "dropout": 0.3}),
    ),
    "transformer-base": Preset(
        _VASWANI,
        "attention alone, six blocks a side",
        _transformer(6, 8, 2048, norm="post", model={"d_model": 512}),
    ),
    "transformer-big": Preset(
        _VASWANI,
        "the base model, twice as wide",
        _transformer(6, 16, 4096, norm="post", model={"d_model": 1024, "dropout": 0.3}),
    ),
    "shaw2018": Preset(
        "Shaw, Uszkoreit, Vaswani 2018: Self-Attention with Relative Position Representations",
        "a learnt vector for each distance, in keys and values",
        _transformer(6, 8, 2048, norm="post", positions="shaw", model={"d_model": 512}),
    ),
    "t5": Preset(
        "Raffel et al. 2020: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (small)",
        "a learnt bias for each range of distances; RMSNorm",
        _transformer(6, 8, 2048, positions="t5", normalize="rms", model={"d_model": 512}),
    ),
    "roformer2021": Preset(
        "Su et al. 2021: RoFormer: Enhanced Transformer with Rotary Position Embedding",
        "queries and keys are turned by their positions",
        _transformer(6, 8, 2048, norm="post", positions="rotary", model={"d_model": 512}),
    ),
    "kasai2021": Preset(
        "Kasai et al. 2021: Deep Encoder, Shallow Decoder",
        "twelve blocks read, one writes: as good, and far quicker to decode",
        {
            "model": {
                "d_model": 512,
                "share_embeddings": True,
                "encoder": _blocks(12, 8, 2048),
                "decoder": _blocks(1, 8, 2048),
            }
        },
    ),
    "shared2019": Preset(
        "Xia et al. 2019: Tied Transformers: Neural Machine Translation with Shared Encoder and Decoder",
        "encoder and decoder are the same blocks",
        _transformer(6, 8, 2048, model={"d_model": 512, "share_layers": True}),
    ),
    "bert": Preset(f"{_DEVLIN} (base)", "the encoder alone, a masked language model", _BERT),
    "bert-mini": Preset("Devlin et al. 2019, as small as will do", "minutes on a CPU", _BERT_MINI),
    "bert-label": Preset(
        f"{_DEVLIN} (4.1)",
        "its first vector predicts a label of a text, or of several (start.encoder names a trained body)",
        _predicted("label", _BERT),
    ),
    "bert-number": Preset(f"{_DEVLIN} (4.1, STS-B)", "its first vector predicts a number", _predicted("number", _BERT)),
    "bert-tags": Preset(f"{_DEVLIN} (5.3)", "each word's first vector predicts its tag", _predicted("tags", _BERT)),
    "bert-mini-label": Preset(
        "Devlin et al. 2019, small, as above", "minutes on a CPU", _predicted("label", _BERT_MINI)
    ),
    # Captions
    "vinyals2015": Preset(
        "Vinyals et al. 2015: Show and Tell: A Neural Image Caption Generator",
        "the picture as one vector, from which an LSTM starts",
        _captions({"context": "last"}, d_model=256),
    ),
    "xu2015": Preset(
        _XU,
        "an LSTM looks at a grid of vectors, softly, before each word",
        _captions({"score": "additive", "place": "recurrence"}, d_model=256),
    ),
    "xu2015-hard": Preset(
        f"{_XU} (4.1)",
        "an LSTM looks at one place, drawn at random, for each word",
        _captions({"score": "additive", "place": "output", "hard": True}, d_model=256),
    ),
}
