"""Which decoder a run gets, and the way out to the CPU: chosen, counted, never silent."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from dstream.clock import Clock
from dstream.errors import InvalidInputError, MediaError, MediaReason
from dstream.measure.counters import Meter
from dstream.media.decoders.choice import refusal
from dstream.media.decoders.contract import Outcome, Run
from dstream.media.decoders.cpu import CpuBackend
from dstream.media.decoders.nvdec import REMEDIES, NvdecDevice, nvdec_device
from dstream.media.decoders.nvdec_backend import NvdecBackend, feed_of
from dstream.media.decoders.nvdec_surfaces import DeviceOutput, HostOutput, Output
from dstream.media.decoders.session_pool import PoolFullError
from dstream.media.pixels import PixelSettings

DecoderName = Literal["cpu", "nvdec", "auto"]


@dataclass(frozen=True, slots=True)
class DecoderChoice:
    """What the user wants to decode with."""

    name: DecoderName = "cpu"
    """``auto``: on NVDEC what it takes, the rest on the CPU; ``nvdec``: nothing on the CPU."""
    gpu: int = 0
    """Whose NVDEC."""
    device: str | None = None
    """``cuda:N``: what NVDEC decodes stays there; None: it comes to the host."""

    def nvdec(self) -> NvdecDevice | None:
        """The device, shared by the process; None for ``cpu``."""
        return None if self.name == "cpu" else nvdec_device(self.gpu)


def decoder_choice(name: str, device: str | None = None) -> DecoderChoice:
    """The choice by its name.

    Args:
        name: ``cpu``, ``nvdec`` or ``auto``.
        device: where batches go; ``cuda:1`` is decoded for by the second GPU.

    Raises:
        InvalidInputError: there is no such decoder, or ``nvdec`` cannot be had on this machine.
    """
    if name not in ("cpu", "nvdec", "auto"):
        raise InvalidInputError(f"decoder must be 'cpu', 'nvdec' or 'auto', got {name!r}")
    number = (device or "").removeprefix("cuda:")
    gpu = int(number) if number.isdecimal() else 0
    on_device = device is not None and device.startswith("cuda") and name != "cpu"
    choice = DecoderChoice(name, gpu, f"cuda:{gpu}" if on_device else None)  # type: ignore[arg-type]
    if name == "nvdec":
        absence = nvdec_device(choice.gpu).absence
        if absence is not None:
            raise _no_nvdec(absence)
    return choice


class Decoders:
    """The backends of one thread. For ``auto`` and ``nvdec`` the device is asked when first used.

    Args:
        pixels: what frames look like.
        meter: counts what goes to the CPU though ``auto`` was asked, as ``fallback`` by reason.
        clock: measures.
        choice: what is wanted.
        device: whose NVDEC; that of the choice by default.
    """

    def __init__(
        self,
        pixels: PixelSettings,
        meter: Meter,
        clock: Clock,
        choice: DecoderChoice | None = None,
        device: NvdecDevice | None = None,
    ) -> None:
        choice = choice or DecoderChoice()
        self._name, self._meter = choice.name, meter
        self._cpu = CpuBackend(pixels, clock)
        self._device = device or choice.nvdec()
        self._nvdec: NvdecBackend | None = None
        if self._device is not None:
            output: Output = (
                HostOutput(pixels, clock)
                if choice.device is None
                else DeviceOutput(pixels, clock, choice.device, meter)
            )
            self._nvdec = NvdecBackend(output, meter, clock, self._device)

    def decode(self, run: Run, *, skip: bool = True) -> Outcome:
        """See :meth:`Backend.decode`.

        Raises:
            InvalidInputError: NVDEC was asked for, and does not take this stream.
            MediaError: the frames cannot be decoded.
        """
        if self._device is None or self._nvdec is None:
            return self._cpu.decode(run, skip=skip)
        try:
            return self._on_device(run, self._device, self._nvdec)
        except _Refused as refused:
            if self._name == "nvdec":
                raise refused.error(run) from refused.__cause__
            self._meter.event("fallback", refused.reason)
            return self._cpu.decode(run, skip=skip)

    def lose(self, thread: threading.Thread) -> None:
        """A thread hangs in a decoder: count on its session no more."""
        if self._device is not None:
            self._device.lose(thread)

    def _on_device(self, run: Run, device: NvdecDevice, nvdec: NvdecBackend) -> Outcome:
        capabilities = device.capabilities(run.track.codec)
        if capabilities is None:
            raise _Refused(device.absence or "nvdec_unusable")
        try:
            feed = feed_of(run)
            reason = refusal(feed.coding, capabilities)
            if reason is None:
                outcome = nvdec.decode_feed(run, feed)
        except PoolFullError:
            reason = "nvdec_memory"
        except Exception as error:  # by the package, by CUDA, or from a damaged stream
            raise _Refused("nvdec_failed") from error
        if reason is not None:
            raise _Refused(reason)
        if outcome.missing and self._name == "auto":
            raise _Refused("nvdec_missing")  # the CPU may have them, and says why if not
        return outcome


class _Refused(Exception):
    """A run that NVDEC does not take, or failed at."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def error(self, run: Run) -> Exception:
        """What it means where the CPU may not help."""
        if self.reason in REMEDIES:
            return _no_nvdec(self.reason)
        cause = self.__cause__
        if self.reason == "nvdec_failed":
            if isinstance(cause, MediaError):
                return cause
            return MediaError(
                f"NVDEC failed: {cause}; decoder='auto' decodes such clips on the CPU",
                reason=MediaReason.UNDECODABLE,
            )
        track = run.track
        return InvalidInputError(
            f"NVDEC of this GPU does not decode {track.codec} {track.pix_fmt} of "
            f"{track.width}x{track.height} ({self.reason}); decoder='auto' decodes it on the CPU",
            reason=self.reason,
        )


def _no_nvdec(reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"decoder='nvdec' cannot be had here ({reason}): {REMEDIES[reason]}; or decoder='auto', "
        "which decodes on the CPU where it must",
        reason=reason,
    )
