"""A codebook of pictures (VQ-VAE, van den Oord et al. 2017): a picture as a grid of codes, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

PICTURES = 64  # that are read or drawn at once
UNQUANTISED = 8  # the first of so many parts of the learning does without codes
RESTARTS = 50  # steps between looks for codes that are not used
UNUSED = 0.03  # a code is, if it is chosen less often than this share of what a code is chosen on average


class Quantized(NamedTuple):
    """Vectors in place of which their codes stand, the numbers of these, and how far apart both are."""

    vectors: Tensor  # (total, width): the codes, with the gradient of what they stand for
    indices: Tensor  # (total,)
    commitment: Tensor  # the mean of (z - sg[e])²


class Quantizer(nn.Module):
    """Vector quantisation (van den Oord et al. 2017). A vector `z` becomes the nearest code (eq. 1 and 2):

        k = argmin_j ‖z - e_j‖²,   q = e_k

    The gradient of `q` is passed straight on to `z`, and `β ‖z - sg[e]‖²` keeps `z` near its code (eq. 3). The codes
    themselves are moving means of the vectors that chose them (appendix A.1):

        N_i ← γ N_i + (1 - γ) n_i,   m_i ← γ m_i + (1 - γ) Σ_j z_ij,   e_i = m_i / N_i
    """

    codes: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, codes: int, width: int, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes), persistent=False)
        self.register_buffer("sums", self.codes.clone(), persistent=False)

    def nearest(self, z: Tensor) -> Tensor:
        """The number of the code that is nearest to each of `(total, width)` vectors; of several, the first."""
        distances = self.codes.square().sum(1) - 2.0 * z @ self.codes.mT  # (total, codes), ‖z‖² left out
        return distances.argmin(1)

    def forward(self, z: Tensor) -> Quantized:
        indices = self.nearest(z.detach())
        found = self.codes[indices]
        return Quantized(z + (found - z).detach(), indices, F.mse_loss(z, found))

    @torch.no_grad()
    def update(self, z: Tensor, indices: Tensor) -> None:
        """Move each code towards the mean of the vectors that chose it."""
        chosen = F.one_hot(indices, len(self.codes)).to(z.dtype)  # adds up in a fixed order, as index_add does not
        self.counts.lerp_(chosen.sum(0), 1.0 - self.decay)
        self.sums.lerp_(chosen.mT @ z, 1.0 - self.decay)
        self.codes.copy_(self.sums / self.counts.clamp(min=torch.finfo(z.dtype).tiny)[:, None])

    @torch.no_grad()
    def restart(self, z: Tensor, draw: torch.Generator, *, every: bool = False) -> None:
        """Put codes that nothing chooses, or every one, where some of these vectors are (Dhariwal et al. 2020)."""
        unused = self.counts < (math.inf if every else UNUSED * float(self.counts.mean()))
        which = torch.randint(len(z), (len(self.codes),), generator=draw).to(z.device)
        fresh = z[which]
        self.codes.copy_(torch.where(unused[:, None], fresh, self.codes))
        self.counts.masked_fill_(unused, 1.0)
        self.sums.copy_(torch.where(unused[:, None], fresh, self.sums))


class Residual(nn.Module):
    """`x + F(x)`, where `F` is ReLU, a convolution of 3 x 3, ReLU and one of 1 x 1 (van den Oord et al. 2017, 4.1)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.near, self.here = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.here(self.near(x.relu()).relu())
        return x + inner


class Codebook(nn.Module):
    """VQ-VAE (van den Oord et al. 2017, 4.1): `halvings` convolutions of 4 x 4 with stride 2 and two residual blocks
    make a grid of vectors, these become codes, and the same backwards makes a picture of those. At half the size of a
    picture there are half of the `channels`."""

    def __init__(self, codes: int, halvings: int, channels: int, width: int, decay: float = 0.99) -> None:
        super().__init__()
        reading: list[nn.Module] = []
        widths = [3, *[(channels + 1) // 2] * (halvings > 1), *[channels] * max(halvings - 1, 1)]
        for before, after in pairwise(widths):
            reading += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
        reading += [nn.Conv2d(channels, channels, 3, padding=1), Residual(channels), Residual(channels), nn.ReLU()]
        self.encoder = nn.Sequential(*reading, nn.Conv2d(channels, width, 1))
        self.quantizer = Quantizer(codes, width, decay)
        drawing: list[nn.Module] = [nn.Conv2d(width, channels, 3, padding=1), Residual(channels), Residual(channels)]
        for after, before in pairwise(widths[::-1]):
            drawing += [nn.ReLU(), nn.ConvTranspose2d(after, before, 4, stride=2, padding=1)]
        self.decoder = nn.Sequential(*drawing)

    def vectors(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The vectors of pictures `(pictures, 3, height, width)`, laid end to end row by row; and the sides of a
        grid."""
        found = self.encoder(x)
        return found.permute(0, 2, 3, 1).flatten(0, 2), (found.shape[2], found.shape[3])

    def drawn(self, vectors: Tensor, grid: tuple[int, int]) -> Tensor:
        """Pictures of vectors laid end to end, as `vectors` gives them."""
        found: Tensor = self.decoder(vectors.unflatten(0, (-1, *grid)).permute(0, 3, 1, 2))
        return found

    # In use

    @torch.inference_mode()
    def encode(self, pictures: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The codes of pictures `(pictures, height, width, 3)`, row by row: `(pictures, cells)`."""
        found = []
        for start in range(0, len(pictures), PICTURES):
            some = pictures[start : start + PICTURES]
            z, _ = self.vectors(to_colours(torch.from_numpy(some).to(self.quantizer.codes.device)))
            found.append(self.quantizer.nearest(z).view(len(some), -1).cpu())
        return np.asarray(torch.cat(found).numpy())

    @torch.inference_mode()
    def decode(self, codes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pictures of codes `(pictures, cells)` of square grids: `(pictures, height, width, 3)`."""
        side, found = math.isqrt(codes.shape[1]), []
        for start in range(0, len(codes), PICTURES):
            flat = torch.from_numpy(codes[start : start + PICTURES]).to(self.quantizer.codes.device).flatten()
            found.append(to_bytes(self.drawn(self.quantizer.codes[flat], (side, side))).cpu())
        return np.asarray(torch.cat(found).numpy())


def to_colours(pictures: Tensor) -> Tensor:
    """Bytes `(pictures, height, width, 3)` as numbers from -1 to 1, `(pictures, 3, height, width)`."""
    return pictures.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def to_bytes(colours: Tensor) -> Tensor:
    """What `to_colours` made, back."""
    return ((colours + 1.0) * 127.5).round().clamp(0.0, 255.0).byte().permute(0, 2, 3, 1).contiguous()


def learn_codebook(
    make: Callable[[], Codebook], pictures: NDArray[np.uint8], *, steps: int, batch: int, rate: float,
    commitment: float, seed: int, device: torch.device, say: Callable[[str], None] = lambda text: None,
) -> Codebook:  # fmt: skip
    """A codebook of these pictures, `(pictures, height, width, 3)`: `‖x - x'‖² / var(x) + β ‖z - sg[e]‖²` over so many
    steps of Adam, with a rate that falls along a cosine.

    For an eighth of the steps there are no codes: they begin among vectors that tell something of a picture.

    It depends on `seed` and on nothing drawn before; what is drawn elsewhere does not depend on it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU, on which weights are drawn, and of no GPU
        model = make().to(device)
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    variance = float((pictures[:: max(1, len(pictures) // 1024)] / 127.5).var()) or 1.0
    everything, order = torch.from_numpy(pictures), torch.zeros(0, dtype=torch.long)
    quantizer, unquantised = model.quantizer, steps // UNQUANTISED
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        for step in range(steps):
            while len(order) < batch:
                order = torch.cat((order, torch.randperm(len(pictures), generator=draw)))
            some, order = order[:batch], order[batch:]
            x = to_colours(everything[some].to(device))
            z, grid = model.vectors(x)
            if step == unquantised:
                quantizer.restart(z.detach(), draw, every=True)
            found = quantizer(z)
            error = F.mse_loss(model.drawn(z if step < unquantised else found.vectors, grid), x)
            optimizer.zero_grad(set_to_none=True)
            loss = error / variance
            (loss if step < unquantised else loss + commitment * found.commitment).backward()
            optimizer.step()
            schedule.step()
            quantizer.update(z.detach(), found.indices)
            if (
                step % RESTARTS == RESTARTS - 1 and step > unquantised and step < 3 * steps // 4
            ):  # the last quarter is for what there is
                quantizer.restart(z.detach(), draw)
            if (step + 1) % max(1, steps // 4) == 0:
                used = int((quantizer.counts >= UNUSED * quantizer.counts.mean()).sum())
                left = float(error.detach()) / variance
                say(f"codebook: step {step + 1:,} of {steps:,}, error {left:.2%} of the variance, {used} codes used")
    return model.eval().requires_grad_(False)
