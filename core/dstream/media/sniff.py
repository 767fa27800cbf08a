"""What kind of file some first bytes belong to, and how MPEG streams begin."""

from __future__ import annotations

TS_SIZES = (188, 192, 204)
_TS_CLOCK_BYTES = 4
"""A 192-byte packet has a timestamp in front of its sync byte."""
_SYNC = 0x47
_LEAST_SYNCS = 5
_PACK = b"\0\0\1\xba"
_BOX_KINDS = frozenset(
    (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pnot", b"uuid", b"moof")
)


def sniff(head: bytes) -> str | None:
    """``mp4``, ``matroska``, ``flv``, ``avi``, ``mpegts``, ``mpegps``, or None."""
    if head[4:8] in _BOX_KINDS:
        return "mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"FLV\1":
        return "flv"
    if head[:4] == b"RIFF" and head[8:12] in (b"AVI ", b"AVIX"):
        return "avi"
    if head[:4] == _PACK:
        return "mpegps"
    if transport_layout(head) is not None:
        return "mpegts"
    return None


def transport_layout(head: bytes) -> tuple[int, int] | None:
    """(offset of the first sync byte, packet size) of a transport stream, or None."""
    for size in TS_SIZES:
        for offset in range(min(size, len(head))):
            syncs = head[offset::size]
            needed = min(_LEAST_SYNCS, max(2, (len(head) - offset) // size))
            if len(syncs) >= needed and all(byte == _SYNC for byte in syncs[:_LEAST_SYNCS]):
                return offset, size
    return None


def transport_header(head: bytes) -> bytes:
    """The packets of the first program tables (PAT, PMT), each as long as the file's packets."""
    layout = transport_layout(head)
    if layout is None:
        return b""
    sync, size = layout
    lead = _TS_CLOCK_BYTES if size == 192 else 0
    result: list[bytes] = []
    programs: set[int] = set()
    done: set[int] = set()
    for at in range(sync, len(head) - size + 1, size):
        packet = head[at : at + 188]
        if packet[0] != _SYNC:
            break
        pid = (packet[1] & 0x1F) << 8 | packet[2]
        starts = bool(packet[1] & 0x40)
        if pid == 0 and not programs:
            programs = _program_pids(packet)
        elif pid in programs and (starts or pid in done):
            if starts and pid in done:
                break  # the tables begin anew
            done.add(pid)
        else:
            continue
        if at >= lead:
            result.append(head[at - lead : at - lead + size])
        if len(result) > 64:
            break
    return b"".join(result)


def _program_pids(packet: bytes) -> set[int]:
    """PIDs of the program maps that a PAT packet names (ISO/IEC 13818-1 2.4.4.3)."""
    at = 4
    if packet[3] & 0x20:
        at += 1 + packet[4]
    if at >= len(packet):
        return set()
    at += 1 + packet[at]
    if at + 8 > len(packet) or packet[at] != 0:
        return set()
    stop = min(len(packet), at + 3 + ((packet[at + 1] & 0x0F) << 8 | packet[at + 2]) - 4)
    pids = set()
    for entry in range(at + 8, stop - 3, 4):
        program = packet[entry] << 8 | packet[entry + 1]
        if program:
            pids.add((packet[entry + 2] & 0x1F) << 8 | packet[entry + 3])
    return pids


def is_scrambled(head: bytes, pid: int) -> bool:
    """Whether packets of a PID carry scrambled payload (ISO/IEC 13818-1 2.4.3.2)."""
    layout = transport_layout(head)
    if layout is None:
        return False
    sync, size = layout
    for at in range(sync, len(head) - 4, size):
        same = head[at] == _SYNC and ((head[at + 1] & 0x1F) << 8 | head[at + 2]) == pid
        if same and head[at + 3] & 0xC0:
            return True
    return False


def program_header(head: bytes) -> bytes:
    """What stands before the first elementary packet: pack and system headers, stream map."""
    at = 0
    while at + 6 <= len(head):
        if head[at : at + 3] != b"\0\0\1":
            break
        code = head[at + 3]
        if code == 0xBA:
            is_mpeg2 = head[at + 4] >> 6 == 1
            at += 14 + (head[at + 13] & 7 if at + 13 < len(head) else 0) if is_mpeg2 else 12
        elif code in (0xBB, 0xBC):
            at += 6 + int.from_bytes(head[at + 4 : at + 6], "big")
        else:
            break
    return head[:at]
