"""Published equations in plain NumPy, one number at a time where that says it best. Nothing here knows torch or Regard.

Weights come as a mapping of names to arrays. A matrix `w` of shape (out, in) maps `x` to `w @ x`, as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


def under(weights: Weights, prefix: str) -> dict[str, Array]:
    """The weights whose names start with `prefix.`, without it."""
    return {name[len(prefix) + 1 :]: w for name, w in weights.items() if name.startswith(prefix + ".")}


def affine(weights: Weights, name: str, x: Array) -> Array:
    """`W x + b`; without `b` where there is none."""
    y: Array = weights[f"{name}.weight"] @ x
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(scores: list[float]) -> list[float]:
    exps = [math.exp(e) for e in scores]
    return [e / sum(exps) for e in exps]


def likeliest(scores: list[float]) -> list[float]:
    """Xu et al. 2015, 4.1, in use: all of the weight on the place of the highest score."""
    return [float(j == scores.index(max(scores))) for j in range(len(scores))]


# Attention


def score(kind: str, w: Weights, s: Array, h: Array, located: Array | float = 0.0) -> float:
    """`e = score(s, h)` of one decoder state and one encoder state; `located` is what its place adds."""
    match kind:
        case "dot":  # Luong et al. 2015, eq. 8
            return float(sum(h[i] * s[i] for i in range(len(s))))
        case "bilinear":  # the same, "general"; stored is the matrix that maps h
            return float((w["weight.weight"] @ h) @ s)
        case "additive" | "location":  # Bahdanau et al. 2015, A.1.2: one matrix on [h; s]
            joined = np.concatenate([w["from_state.weight"], w["from_query.weight"]], axis=1)
            inner = np.tanh(joined @ np.concatenate([h, s]) + w["from_state.bias"] + located)
            return float(w["v.weight"][0] @ inner)
        case "mlp":  # two layers on [h; s], then v
            joined = np.concatenate([w["from_state.weight"], w["from_query.weight"]], axis=1)
            first = np.maximum(joined @ np.concatenate([h, s]) + w["from_state.bias"], 0.0)
            return float(w["v.weight"][0] @ np.tanh(affine(w, "hidden", first)))
        case "scaled_dot":  # Vaswani et al. 2017, eq. 1
            key, query = w["from_state.weight"] @ h, w["from_query.weight"] @ s
            return float(key @ query) / math.sqrt(len(s))
    raise ValueError(kind)


def located(w: Weights, past: Array, j: int) -> Array:
    """`U f_j` with `f = F * α` (Chorowski et al. 2015, eq. 8): each filter over the weights around place `j`."""
    filters = w["filters.weight"][:, 0]  # (filters, width)
    reach = filters.shape[1] // 2
    around = np.array([past[i] if 0 <= i < len(past) else 0.0 for i in range(j - reach, j + reach + 1)])
    return np.asarray(w["from_location.weight"] @ (filters @ around))


def context(alphas: list[float], values: list[Array], d_model: int) -> Array:
    """`c = Σ_j α_j h_j` (Bahdanau et al. 2015, eq. 5); nothing to attend to gives zeros."""
    c = np.zeros(d_model)
    for alpha, h in zip(alphas, values, strict=True):
        c = c + alpha * h
    return c


def thirds(w: Weights) -> list[Weights]:
    """The weights of queries, of keys and of values, which lie one above the other."""
    parts = {name: np.split(w[name], 3) for name in ("inputs.weight", "inputs.bias") if name in w}
    return [{name: part[i] for name, part in parts.items()} for i in range(3)]


def multi_head(
    w: Weights, heads: int, xs: list[Array], memory: list[Array], *, causal: bool = False, scaled: bool = True
) -> list[Array]:
    """Vaswani et al. 2017, 3.2.2, a head and a query at a time; without `scaled`, as T5 has it."""
    of_queries, of_keys, of_values = thirds(w)
    outputs = []
    for i, x in enumerate(xs):
        seen = memory[: i + 1] if causal else memory
        joined = []
        for head in range(heads):
            size = len(of_queries["inputs.weight"]) // heads
            part = slice(head * size, (head + 1) * size)
            q = affine(of_queries, "inputs", x)[part]
            keys = [affine(of_keys, "inputs", m)[part] for m in seen]
            values = [affine(of_values, "inputs", m)[part] for m in seen]
            alphas = softmax([float(q @ k) / (math.sqrt(size) if scaled else 1.0) for k in keys])
            joined.append(context(alphas, values, size))
        outputs.append(affine(w, "output", np.concatenate(joined)))
    return outputs


# The Transformer


def layer_norm(w: Weights, x: Array) -> Array:
    """Ba et al. 2016, eq. 4, with the usual 1e-5 under the root."""
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return np.array([(v - mean) / math.sqrt(variance + 1e-5) for v in x]) * w["weight"] + w["bias"]


def activate(kind: str, x: Array) -> Array:
    """gelu is `x Φ(x)` (Hendrycks and Gimpel 2016), gelu_tanh what they take for it, silu `x σ(x)`."""
    f = {
        "relu": lambda v: max(0.0, v),
        "gelu": lambda v: v * 0.5 * (1.0 + math.erf(v / math.sqrt(2.0))),
        "gelu_tanh": lambda v: 0.5 * v * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (v + 0.044715 * v**3))),
        "silu": lambda v: v / (1.0 + math.exp(-v)),
    }[kind]
    return np.array([f(v) for v in x])


def feed_forward(w: Weights, x: Array, activation: str) -> Array:
    """Vaswani et al. 2017, eq. 2."""
    return affine(w, "outer", activate(activation, affine(w, "inner", x)))


def encoder_block(w: Weights, xs: list[Array], *, heads: int, norm: str, activation: str) -> list[Array]:
    """Attention, then feed-forward: `norm(x + f(x))` as published, or `x + f(norm(x))` (Xiong et al. 2020)."""
    n1, n2 = under(w, "around_attention.norm"), under(w, "around_feed_forward.norm")
    attention, ff = under(w, "self_attention"), under(w, "feed_forward")
    if norm == "pre":
        normed = [layer_norm(n1, x) for x in xs]
        xs = [x + y for x, y in zip(xs, multi_head(attention, heads, normed, normed), strict=True)]
        return [x + feed_forward(ff, layer_norm(n2, x), activation) for x in xs]
    xs = [layer_norm(n1, x + y) for x, y in zip(xs, multi_head(attention, heads, xs, xs), strict=True)]
    return [layer_norm(n2, x + feed_forward(ff, x, activation)) for x in xs]


def decoder_block(
    w: Weights, xs: list[Array], memory: list[Array], *, heads: int, norm: str, activation: str
) -> list[Array]:
    """Causal attention, attention over the encoder's states, feed-forward."""
    n1, n2, n3 = (under(w, f"around_{part}.norm") for part in ("self", "cross", "feed_forward"))
    back, across, ff = under(w, "self_attention"), under(w, "cross_attention"), under(w, "feed_forward")
    if norm == "pre":
        normed = [layer_norm(n1, x) for x in xs]
        xs = [x + y for x, y in zip(xs, multi_head(back, heads, normed, normed, causal=True), strict=True)]
        looks = multi_head(across, heads, [layer_norm(n2, x) for x in xs], memory)
        xs = [x + y for x, y in zip(xs, looks, strict=True)]
        return [x + feed_forward(ff, layer_norm(n3, x), activation) for x in xs]
    looks = multi_head(back, heads, xs, xs, causal=True)
    xs = [layer_norm(n1, x + y) for x, y in zip(xs, looks, strict=True)]
    xs = [layer_norm(n2, x + y) for x, y in zip(xs, multi_head(across, heads, xs, memory), strict=True)]
    return [layer_norm(n3, x + feed_forward(ff, x, activation)) for x in xs]


# Recurrence


def cell(kind: str, w: Weights, x: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
    """One step: the hidden vector first, then an LSTM's cell."""
    h, d = carry[0], len(carry[0])
    w_x, w_h, b_x, b_h = (w[name] for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))

    def gate(i: int) -> Array:
        rows = slice(i * d, (i + 1) * d)
        y: Array = w_x[rows] @ x + w_h[rows] @ h + b_x[rows] + b_h[rows]
        return y

    match kind:
        case "rnn":  # Elman 1990
            return (np.tanh(gate(0)),)
        case "lstm":  # Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000
            i, f, g, o = sigmoid(gate(0)), sigmoid(gate(1)), np.tanh(gate(2)), sigmoid(gate(3))
            c = f * carry[1] + i * g
            return (o * np.tanh(c), c)
        case "gru":
            # Cho et al. 2014 reset the state before the matrix, U (r ⊙ h). torch, and so Regard, resets after it,
            # r ⊙ (U h + b): one product for all three gates (cuDNN's variant).
            r, z = sigmoid(gate(0)), sigmoid(gate(1))
            rows = slice(2 * d, 3 * d)
            candidate = np.tanh(w_x[rows] @ x + b_x[rows] + r * (w_h[rows] @ h + b_h[rows]))
            return ((1.0 - z) * candidate + z * h,)
    raise ValueError(kind)


def zeros(kind: str, d: int) -> tuple[Array, ...]:
    return (np.zeros(d),) * (2 if kind == "lstm" else 1)


def stack(
    kind: str, layers: list[Weights], x: Array, carries: list[tuple[Array, ...]]
) -> tuple[Array, list[tuple[Array, ...]]]:
    """One step of layers on top of one another: the top's hidden vector and what each carries on."""
    after = []
    for w, carry in zip(layers, carries, strict=True):
        new = cell(kind, w, x, carry)
        after.append(new)
        x = new[0]
    return x, after


def read(kind: str, w: Weights, xs: list[Array], d: int) -> tuple[list[Array], tuple[Array, ...]]:
    """All hidden vectors of one layer from a state of zeros, and what it carries at the end."""
    carry, states = zeros(kind, d), []
    for x in xs:
        carry = cell(kind, w, x, carry)
        states.append(carry[0])
    return states, carry


def mogrified(w: Weights, x: Array, h: Array) -> tuple[Array, Array]:
    """Melis et al. 2020, eq. 1 and 2: odd rounds gate the input by the state, even ones the state by the input. A
    matrix may be a product of two, the right one first."""
    rounds = 1 + max((int(name.split(".")[1]) for name in w if name.startswith("gates.")), default=-1)
    for i in range(rounds):
        by = h if i % 2 == 0 else x
        for name in sorted(name for name in w if name.startswith(f"gates.{i}.")):
            by = w[name] @ by
        x, h = (2 * sigmoid(by) * x, h) if i % 2 == 0 else (x, 2 * sigmoid(by) * h)
    return x, h


def awd_lstm(w: Weights, xs: list[Array], layers: int) -> list[Array]:
    """Merity et al. 2018 without dropout: LSTMs on top of one another, whose steps may be mogrified."""
    for i in range(layers):
        own, states = under(w, f"layers.{i}"), []
        width = own["cell.weight_hh_l0"].shape[1]
        h, c = np.zeros(width), np.zeros(width)
        for x in xs:
            gated, state = mogrified(own, x, h)
            h, c = cell("lstm", under(own, "cell"), gated, (state, c))
            states.append(h)
        xs = states
    return [affine(w, "project", x) for x in xs] if "project.weight" in w else xs


def mixture_of_softmaxes(w: Weights, h: Array, softmaxes: int) -> Array:
    """Yang et al. 2018, eq. 3: `log Σ_k π_k softmax(W tanh(U_k h) + b)`."""
    prior = softmax((w["prior.weight"] @ h).tolist())
    latent = np.tanh(affine(w, "latent", h)).reshape(softmaxes, -1)
    parts = [share * np.array(softmax(affine(w, "linear", v).tolist())) for share, v in zip(prior, latent, strict=True)]
    return np.asarray(np.log(np.sum(parts, axis=0)))


# Relative positions, root-mean-square norm, gates and heads over states


def rotate(x: Array, slot: int, base: float = 10000.0) -> Array:
    """Su et al. 2021, eq. 34 and 15: each pair as a complex number, times `e^{i t θ}`."""
    turned = np.zeros(len(x))
    for i in range(len(x) // 2):
        theta = base ** (-2 * i / len(x))
        z = complex(x[2 * i], x[2 * i + 1]) * complex(math.cos(slot * theta), math.sin(slot * theta))
        turned[2 * i], turned[2 * i + 1] = z.real, z.imag
    return turned


def sinusoid(t: int, d_model: int) -> Array:
    """Vaswani et al. 2017, 3.5, of a position or a distance."""
    angles = [t / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    return np.array([f(angle) for angle in angles for f in (math.sin, math.cos)])


def alibi_slopes(heads: int) -> list[float]:
    """Press et al. 2022, 3: a geometric sequence from `2^{-8/n}` by `2^{-8/n}`; filled up from that of `2n` heads."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    first = 2.0 ** (-8.0 / power)
    slopes = [first * first**h for h in range(power)]
    return slopes if power == heads else slopes + alibi_slopes(2 * power)[0::2][: heads - power]


def t5_bucket(distance: int, buckets: int, longest: int, *, bidirectional: bool) -> int:
    """Raffel et al. 2020, 2.1, as their code has it, for key minus query; logarithms are freed of their last digits."""
    start, n = 0, -distance
    if bidirectional:
        buckets //= 2
        start = buckets if n < 0 else 0
        n = abs(n)
    else:
        n = max(n, 0)
    exact = buckets // 2
    if n < exact:
        return start + n
    share = math.log(n / exact) / math.log(longest / exact)
    return start + min(exact + math.floor(round(share * (buckets - exact), 9)), buckets - 1)


def relative_attention(
    kind: str, w: Weights, heads: int, xs: list[Array], *, causal: bool, buckets: int, longest: int, clip: int,
    scaled: bool = True,
) -> list[Array]:  # fmt: skip
    """Self-attention under any of the five relative positions, a head, a query and a key at a time."""
    of_queries, of_keys, of_values = thirds(w)
    outputs = []
    size = len(of_queries["inputs.weight"]) // heads

    def a(table: str, i: int, j: int) -> Array:  # Shaw et al. 2018, eq. 5 to 7
        return w[f"relative.{table}.weight"][max(-clip, min(clip, j - i)) + clip]

    for i in range(len(xs)):
        joined = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            q = affine(of_queries, "inputs", xs[i])[part]
            scores, values = [], []
            for j in range(i + 1 if causal else len(xs)):
                k, v = affine(of_keys, "inputs", xs[j])[part], affine(of_values, "inputs", xs[j])[part]
                match kind:
                    case "rotary":
                        e = float(rotate(q, i) @ rotate(k, j)) / math.sqrt(size)
                    case "alibi":
                        e = float(q @ k) / math.sqrt(size) - alibi_slopes(heads)[head] * abs(i - j)
                    case "t5":
                        bucket = t5_bucket(j - i, buckets, longest, bidirectional=not causal)
                        e = float(q @ k) / (math.sqrt(size) if scaled else 1.0)
                        e += float(w["relative.table.weight"][bucket, head])
                    case "shaw":
                        e = float(q @ (k + a("key_table", i, j))) / math.sqrt(size)
                        v = v + a("value_table", i, j)
                    case "xl":  # Dai et al. 2019, 3.3
                        r = (w["relative.from_distance.weight"] @ sinusoid(i - j, len(xs[0])))[part]
                        u, bias = w["relative.to_key"][head], w["relative.to_distance"][head]
                        e = float((q + u) @ k + (q + bias) @ r) / math.sqrt(size)
                    case _:
                        raise ValueError(kind)
                scores.append(e)
                values.append(v)
            joined.append(context(softmax(scores), values, size))
        outputs.append(affine(w, "output", np.concatenate(joined)))
    return outputs


def rms_norm(w: Weights, x: Array) -> Array:
    """Zhang and Sennrich 2019, eq. 4, with 1e-5 under the root."""
    root = math.sqrt(sum(v * v for v in x) / len(x) + 1e-5)
    return np.array([v / root for v in x]) * w["weight"]


def gated_feed_forward(w: Weights, x: Array, activation: str) -> Array:
    """Shazeer 2020, eq. 5 and 6: `W₂ (f(W₁ x) ⊙ V x)`."""
    inner, gate = activate(activation, w["inner.weight"] @ x), w["gate.weight"] @ x
    y: Array = w["outer.weight"] @ np.array([a * b for a, b in zip(inner, gate, strict=True)])
    return y


def block_alone(
    w: Weights, xs: list[Array], *, heads: int, norm: str, activation: str, positions: str, normalize: str = "layer",
    gated: bool = False, buckets: int = 32, longest: int = 128, clip: int = 16,
) -> list[Array]:  # fmt: skip
    """A decoder's block without a source (Radford et al. 2018), under any options: look back, then feed forward."""
    n1, n2 = under(w, "around_self.norm"), under(w, "around_feed_forward.norm")
    back, ff = under(w, "self_attention"), under(w, "feed_forward")
    normed = rms_norm if normalize == "rms" else layer_norm
    feed = gated_feed_forward if gated else feed_forward

    def look(xs: list[Array]) -> list[Array]:
        if positions in ("sinusoidal", "learned"):
            return multi_head(back, heads, xs, xs, causal=True)
        return relative_attention(positions, back, heads, xs, causal=True, buckets=buckets, longest=longest, clip=clip)

    if norm == "pre":
        xs = [x + y for x, y in zip(xs, look([normed(n1, x) for x in xs]), strict=True)]
        return [x + feed(ff, normed(n2, x), activation) for x in xs]
    xs = [normed(n1, x + y) for x, y in zip(xs, look(xs), strict=True)]
    return [normed(n2, x + feed(ff, x, activation)) for x in xs]


def heads_over_states(
    kind: str, w: Weights, heads: int, s: Array, states: list[Array], *, hard: bool = False
) -> tuple[list[list[float]], Array]:
    """The weights of each head and the joined contexts of one decoder state over encoder states."""
    size, alphas, joined = len(s) // heads, [], []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        q, keys = (w["query.weight"] @ s)[part], [(w["key.weight"] @ h)[part] for h in states]
        scores = [score(kind, under(w, "score"), q, k) for k in keys]
        alphas.append(likeliest(scores) if hard else softmax(scores))
        joined.append(context(alphas[-1], [(w["value.weight"] @ h)[part] for h in states], size))
    return alphas, np.concatenate(joined)


# Pictures


def convolve(w: Weights, x: Array, stride: int) -> Array:
    """Kernels of 3 x 3 over `(channels, height, width)`, edges filled up with zeros, a number at a time."""
    kernel, bias = w["weight"], w["bias"]
    channels, height, width = x.shape
    y = np.zeros((len(kernel), height // stride, width // stride))
    for o, row, column in np.ndindex(*y.shape):
        y[o, row, column] = bias[o]
        for c, i, j in np.ndindex(channels, 3, 3):
            at = row * stride + i - 1, column * stride + j - 1
            if 0 <= at[0] < height and 0 <= at[1] < width:
                y[o, row, column] += kernel[o, c, i, j] * x[c, at[0], at[1]]
    return y


def pool(x: Array) -> Array:
    """Hassani et al. 2021, eq. 2: of every other place of `(channels, height, width)` the largest of the 3 x 3 around
    it."""
    _, height, width = x.shape
    rows = [
        [x[:, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2] for j in range(0, width, 2)] for i in range(0, height, 2)
    ]
    return np.stack([np.stack([around.max((1, 2)) for around in row], -1) for row in rows], -2)


def group_norm(w: Weights, x: Array) -> Array:
    """Wu and He 2018, eq. 1 and 2, with one group: over all channels and places; a gain and a shift a channel."""
    normed = (x - x.sum() / x.size) / math.sqrt(((x - x.sum() / x.size) ** 2).sum() / x.size + 1e-5)
    return normed * w["weight"][:, None, None] + w["bias"][:, None, None]


# Looking inside


def rollout(layers: list[Array]) -> list[list[float]]:
    """Abnar and Zuidema 2020: `A_l = 0.5 W_l + 0.5 I` with rows that sum to one, W the mean over heads of the layer's
    `(heads, pieces, pieces)`; then `R_1 = A_1`, and `R_l = A_l R_(l-1)`."""
    found: list[list[float]] = []
    for heads in layers:
        n = len(heads[0])
        mixed = [[0.5 * sum(float(w[i, j]) for w in heads) / len(heads) + 0.5 * (i == j) for j in range(n)]
                 for i in range(n)]  # fmt: skip
        rows = [[x / sum(row) for x in row] for row in mixed]
        if found:
            rows = [[sum(rows[i][k] * found[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
        found = rows
    return found


def lora(x: Array, w: Array, b: Array, down: Array, up: Array, alpha: float) -> Array:
    """Hu et al. 2022, eq. 3: `W x + b + (α / r) B A x`."""
    return x @ w.T + b + alpha / len(down) * x @ down.T @ up.T
