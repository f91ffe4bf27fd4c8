"""SPHERE files for tests, from typed headers."""

from pathlib import Path

from espnet_distopt.recipes.corpora.audio.sphere import SphereFile

PCM_LITTLE = """
    channel_count -i 1
    sample_count -i 3
    sample_rate -i 8000
    sample_n_bytes -i 2
    sample_byte_format -s2 01
    sample_sig_bits -i 16
    sample_coding -s3 pcm
"""


def sphere(path: Path, fields: str, content: bytes, size: int = 1024) -> Path:
    """Write a file from the typed lines of its header, and its samples."""
    lines = [line.strip() for line in fields.strip().splitlines()]
    header = f"NIST_1A\n{size:7}\n" + "\n".join([*lines, "end_head", ""])
    path.write_bytes(header.encode().ljust(size) + content)
    return path


def shortened(path: Path, samples: int, coded: bytes, coding: str = "pcm") -> Path:
    """Write two channels that shorten has compressed, of so many samples each."""
    size = 2 if coding == "pcm" else 1
    coding = f"{coding},embedded-shorten-v2.00"
    fields = f"""
        channel_count -i 2
        sample_count -i {samples}
        sample_rate -i 8000
        sample_n_bytes -i {size}
        sample_byte_format -s2 01
        sample_coding -s{len(coding)} {coding}
    """
    return sphere(path, fields, coded)


def read_all(path: Path) -> list[list[int]]:
    with SphereFile(path) as file:
        header = file.header
        return [
            file.read(0, header.samples, channel).tolist()
            for channel in range(header.channels)
        ]
