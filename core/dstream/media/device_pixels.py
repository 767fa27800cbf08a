"""From a decoded NV12 or P010 surface to planar RGB, on the device where it lies, in torch.

The same steps as :mod:`dstream.media.pixels`, whose result is the measure: FFmpeg's scaler
rounds in fixed point, so values differ by a little. Against it, over noise and smooth pictures,
these hold (``tests/media_decode/test_device_pixels.py``): 8 bits: 3 of 255, after shrinking 5,
after enlarging 16 (noise; smooth pictures 5). More bits to 8: 1. Native 10 bits: 6 of 1023.

Nothing waits for the device: every step is queued on the caller's current stream. With TF32
allowed for matrix products (torch's default is not), resized values lose some 10 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dstream.errors import MediaError, MediaReason
from dstream.format.index import VideoTrack
from dstream.media.pixels import PixelSettings, crop_offset, output_dtype, resized_shape
from dstream.media.resampling import Kernel, weights

_BT601 = (0.299, 0.114)
_LUMA = dict.fromkeys((2, 3, 5, 6), _BT601) | {
    1: (0.2126, 0.0722),
    4: (0.30, 0.11),
    7: (0.212, 0.087),
    9: (0.2627, 0.0593),
}
"""AVCOL_SPC -> (Kr, Kb), ITU-T H.273 table 4; untagged video is BT.601, as FFmpeg reads it."""
_FULL_RANGE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """A decoded picture as NVDEC gives it."""

    luma: Any
    """uint8 or uint16 tensor [H, W]; samples of more than 8 bits fill the high bits."""
    chroma: Any
    """The same type, [ceil(H / 2), ceil(W / 2), 2]: U and V in turn."""
    depth: int
    """Bits of a sample: 8, 10 or 12."""


def luma_shares(matrix: int) -> tuple[float, float]:
    """(Kr, Kb) of an AVCOL_SPC value.

    >>> luma_shares(1), luma_shares(2)
    ((0.2126, 0.0722), (0.299, 0.114))

    Raises:
        MediaError: the matrix is none of these (RGB, constant luminance, ...).
    """
    if matrix not in _LUMA:
        raise MediaError(
            f"no conversion with colour matrix {matrix} on a device; decoder='cpu' may know it",
            reason=MediaReason.UNDECODABLE,
            color_space=matrix,
        )
    return _LUMA[matrix]


class DeviceConverter:
    """Writes surfaces of any track into tensors on their device.

    Keeps the weights of a resize on the device: one for each thread.
    """

    def __init__(self, settings: PixelSettings) -> None:
        import torch

        self._torch: Any = torch
        self._settings = settings
        self._weights: dict[tuple[int, int, Kernel, str], Any] = {}

    def write(
        self,
        surface: Surface,
        track: VideoTrack,
        out: Any,
        crop_at: tuple[float, float] | None = None,
    ) -> None:
        """Fill ``out`` [3, H, W], shaped by ``output_shape``, with a surface.

        Args:
            surface: as decoded, not turned.
            track: says colours, how the picture is turned, and what the output is.
            out: tensor of ``output_dtype`` on the surface's device.
            crop_at: as for :meth:`dstream.media.pixels.FrameConverter.write`.

        Raises:
            MediaError: the surface's size is not the track's, or its colour matrix is unknown.
        """
        height, width = surface.luma.shape
        if (width, height) != (track.width, track.height):
            raise MediaError(
                f"the picture changes from {track.width}x{track.height} to {width}x{height}; such "
                "a video gives no clips",
                reason=MediaReason.UNDECODABLE,
                width=width,
                height=height,
            )
        shown = resized_shape(track, self._settings)
        top, left = crop_offset(self._settings, shown, tuple(out.shape[1:]), crop_at)
        turned = track.rotation_deg in (90, 270)
        planes = self._resized(self._samples(surface), shown[::-1] if turned else shown, surface)
        rgb = self._rgb(planes, surface.depth, track)
        if track.mirrored:
            rgb = rgb.flip(2)
        if track.rotation_deg:
            rgb = self._torch.rot90(rgb, -track.rotation_deg // 90, (1, 2))
        rgb = rgb[:, top : top + out.shape[1], left : left + out.shape[2]]
        peak = (
            255 if output_dtype(track, self._settings).itemsize == 1 else (1 << surface.depth) - 1
        )
        out.copy_((rgb * peak).clamp_(0, peak).round_().to(self._torch.int32))

    def _samples(self, surface: Surface) -> list[Any]:
        """float32 planes Y, U, V in units of the surface's depth."""
        shift = 1 << (16 - surface.depth) if surface.depth > 8 else 1
        chroma = surface.chroma.to(self._torch.float32).div_(shift)
        return [
            surface.luma.to(self._torch.float32).div_(shift), chroma[..., 0], chroma[..., 1]
        ]  # fmt: skip

    def _resized(self, planes: list[Any], size: tuple[int, int], surface: Surface) -> list[Any]:
        """Planes of a picture of ``size``, chroma as large as luma."""
        luma, *chroma = planes
        height, width = luma.shape
        if (height, width) != size:
            kernel: Kernel = "area" if size[0] <= height and size[1] <= width else "bicubic"
            peak = (1 << surface.depth) - 1
            half = -(-size[0] // 2), -(-size[1] // 2)
            luma = self._scaled(luma, size, kernel).clamp_(0, peak).round_()
            chroma = [self._scaled(c, half, kernel).clamp_(0, peak).round_() for c in chroma]
        if surface.depth == 8:  # FFmpeg's fast path repeats chroma samples
            grown = [c.repeat_interleave(2, 0).repeat_interleave(2, 1) for c in chroma]
            return [luma, *(c[: size[0], : size[1]] for c in grown)]
        return [luma, *(self._scaled(c, size, "linear") for c in chroma)]

    def _scaled(self, plane: Any, size: tuple[int, int], kernel: Kernel) -> Any:
        rows = self._weights_on(plane.shape[0], size[0], kernel, plane.device)
        columns = self._weights_on(plane.shape[1], size[1], kernel, plane.device)
        return rows @ plane @ columns.T

    def _weights_on(self, source: int, target: int, kernel: Kernel, device: Any) -> Any:
        key = (source, target, kernel, str(device))
        if key not in self._weights:
            host = self._torch.from_numpy(weights(source, target, kernel).copy())
            self._weights[key] = host.to(device)
        return self._weights[key]

    def _rgb(self, planes: list[Any], depth: int, track: VideoTrack) -> Any:
        """float32 [3, H, W], black 0 and white 1."""
        y, u, v = planes
        unit, peak = 1 << (depth - 8), (1 << depth) - 1
        if track.color_range == _FULL_RANGE or track.pix_fmt.startswith("yuvj"):
            y, u, v = y / peak, (u - 128 * unit) / peak, (v - 128 * unit) / peak
        else:
            y = (y - 16 * unit) / (219 * unit)
            u, v = (u - 128 * unit) / (224 * unit), (v - 128 * unit) / (224 * unit)
        kr, kb = luma_shares(track.color_space)
        red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
        green = (y - kr * red - kb * blue) / (1 - kr - kb)
        return self._torch.stack((red, green, blue))
