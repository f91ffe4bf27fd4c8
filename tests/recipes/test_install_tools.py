"""These tests run tools/install_tools.sh with a stub for apt-get."""

import shutil
import subprocess
from pathlib import Path

from tests.recipes.toy_recipe import ROOT

# It succeeds only after an update, as on a fresh machine, and makes what it installs.
APT_GET = """\
#!/bin/sh
if read -r answer; then answered=", answered"; fi
echo "$DEBIAN_FRONTEND: $*$answered" >>log
case "$*" in
    *update) : >updated ;;
    *) [ -e updated ] && : >path/ffmpeg && chmod +x path/ffmpeg ;;
esac
"""
SUDO = '#!/bin/sh\nshift\nexec "$@"\n'


def test_a_missing_tool_is_installed_without_a_question(tmp_path: Path) -> None:
    for folder in ("local", "tools", "path"):
        (tmp_path / folder).mkdir()
    for name in ("tools/install_tools.sh", "local/log.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("bash", "chmod", "date", "dirname", "env", "id", "true"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / "path" / name).symlink_to(found)
    for name, text in (("apt-get", APT_GET), ("sudo", SUDO)):
        (tmp_path / "path" / name).write_text(text)
        (tmp_path / "path" / name).chmod(0o755)
    for name in ("sctk", "chromium"):
        (tmp_path / "path" / name).write_text("#!/bin/sh\necho sclite Version: 2.10\n")
        (tmp_path / "path" / name).chmod(0o755)
    done = subprocess.run(
        ["tools/install_tools.sh"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path / "path")},
        input="an answer\n" * 9,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ffmpeg: installing ffmpeg" in done.stdout
    assert "ffmpeg: missing" not in done.stdout
    install = "noninteractive: -qq install -y --no-install-recommends"
    log = (tmp_path / "log").read_text().splitlines()
    assert log[:3] == [
        f"{install} ffmpeg",
        "noninteractive: -qq update",
        f"{install} ffmpeg",
    ]
    assert "answered" not in "".join(log)
