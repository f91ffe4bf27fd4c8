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


def read_all(path: Path) -> list[list[int]]:
    with SphereFile(path) as file:
        header = file.header
        return [
            file.read(0, header.samples, channel).tolist()
            for channel in range(header.channels)
        ]
