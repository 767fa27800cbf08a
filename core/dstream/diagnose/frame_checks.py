"""The fourth gap: what turns bytes into frames here, and how fast."""

from __future__ import annotations

import io
from dataclasses import replace
from fractions import Fraction

from dstream.clock import Clock
from dstream.diagnose.finding import Finding, Gap, Page, Verdict, graded
from dstream.media.decoders.choice import NVDEC_CODECS, Coding, refusal
from dstream.media.decoders.nvdec import REMEDIES, NvdecDevice, nvdec_device

_CODECS = ("h264", "hevc", "av1", "vp9", "mpeg4", "mjpeg", "vvc")
_WIDTH, _HEIGHT, _FRAMES = 1280, 720, 30


def frame_findings(page: Page, clock: Clock) -> None:
    """Add a line for NVDEC, the CPU's decoders, and what one thread of them does."""
    with page.check(Gap.FRAMES, "NVDEC"):
        _nvdec(page)
    with page.check(Gap.FRAMES, "CPU decoders"):
        found, missing = cpu_decoders()
        told = ", ".join(found) + (f"; not {', '.join(missing)}" if missing else "")
        verdict = Verdict.GOOD if {"h264", "hevc", "av1"} <= set(found) else Verdict.WEAK
        page.add(Finding(Gap.FRAMES, "CPU decoders", told, verdict))
    with page.check(Gap.FRAMES, "CPU decoding"):
        rate = decode_rate(clock)
        page.add(
            Finding(
                Gap.FRAMES,
                "CPU decoding",
                f"{rate:,.0f} frames/s of {_WIDTH}x{_HEIGHT} H.264 a thread, without conversion",
                graded(rate, 200, 60),
                "" if rate >= 200 else "decode on more cores, or store smaller pictures",
                rate,
                "frames/s",
            )
        )


def _nvdec(page: Page) -> None:
    found = nvdec_finding(nvdec_device(0))
    if any(one.check == "GPU" and one.verdict is Verdict.ABSENT for one in page.findings):
        found = replace(found, remedy="")  # no package helps a machine without a GPU
    page.add(found)


def nvdec_finding(device: NvdecDevice) -> Finding:
    """What the device decodes, and the reasons that ``fallbacks`` would have for the rest."""
    every = [device.capabilities(codec) for codec in NVDEC_CODECS]
    told = [capabilities for capabilities in every if capabilities is not None]
    if device.absence is not None or not told:
        reason = device.absence or "nvdec_unusable"
        found = f"{reason}: frames are decoded on the CPU"
        is_absent = reason in ("not_installed", "no_driver")
        verdict = Verdict.ABSENT if is_absent else Verdict.BAD
        remedy = device.failure or REMEDIES[reason]
        return Finding(Gap.FRAMES, "NVDEC", found, verdict, remedy)
    formats = told[-1].formats  # asked one after the other, each has what was asked before
    does = [f"{codec} {depth} bit" for codec, depth in formats]
    asked = [
        refusal(Coding(codec, pix_fmt, _WIDTH, _HEIGHT), told[-1])
        for codec in NVDEC_CODECS
        for pix_fmt in ("yuv420p", "yuv420p10le")
    ]
    lacks = sorted({reason for reason in asked if reason is not None})
    found = f"{device.engines} engines: {', '.join(does) or 'no codec'}"
    found += f"; {', '.join(lacks)}" if lacks else ""
    return Finding(Gap.FRAMES, "NVDEC", found, Verdict.GOOD if does else Verdict.BAD)


def cpu_decoders() -> tuple[list[str], list[str]]:
    """Codecs that libav decodes here, and those of the common ones that it does not."""
    import av

    found, missing = [], []
    for name in _CODECS:
        try:
            av.codec.Codec(name, "r")
        except (ValueError, av.FFmpegError):
            missing.append(name)
        else:
            found.append(name)
    return found, missing


def decode_rate(clock: Clock) -> float:
    """Frames a second of one thread, on a short video made here: H.264 with B-frames.

    Raises:
        Exception: whatever libav raises, for example where it was built without an encoder.
    """
    import av
    import numpy as np

    memory = io.BytesIO()
    with av.open(memory, "w", format="mp4") as writing:
        stream = writing.add_stream("libx264", rate=30, options={"preset": "veryfast", "bf": "3"})
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        rows = np.arange(_HEIGHT * 3 // 2, dtype=np.float32)[:, None]
        columns = np.arange(_WIDTH, dtype=np.float32)[None, :]
        for number in range(_FRAMES):
            # Waves that move, so that the decoder has motion and residuals to work on.
            wave = np.sin(rows / 17 + number / 3) + np.cos(columns / 23 - number / 5)
            picture = 128 + 60 * wave
            frame = av.VideoFrame.from_ndarray(picture.astype(np.uint8), format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            writing.mux(stream.encode(frame))
        writing.mux(stream.encode(None))
    memory.seek(0)
    with av.open(memory, "r") as reading:
        track = reading.streams.video[0]
        track.thread_count = 1
        packets = [packet for packet in reading.demux(track) if packet.size]
        began_s = clock.monotonic_s()
        decoded = sum(len(track.codec_context.decode(packet)) for packet in [*packets, None])
    return decoded / max(clock.monotonic_s() - began_s, 1e-9)
