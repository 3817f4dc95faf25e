import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check-breaking"
BUF = Path(sys.executable).parent / "buf"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if not (BUF.is_file() and SCRIPT.is_file()):
        pytest.skip("needs the checkout and its buf")
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def check(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), str(BUF)],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def release(checkout: Path) -> None:
    subprocess.run([str(BUF), "build", "-o", "proto/baseline.binpb"], cwd=checkout, check=True, timeout=50)


def test_before_the_first_release_the_check_says_there_is_nothing_to_compare_with(checkout: Path) -> None:
    (checkout / "proto" / "baseline.binpb").unlink(missing_ok=True)
    result = check(checkout)
    assert (result.returncode, "nothing is released yet" in result.stdout) == (0, True)


def test_an_unchanged_contract_passes(checkout: Path) -> None:
    release(checkout)
    assert check(checkout).returncode == 0


def test_a_renamed_field_is_refused(checkout: Path) -> None:
    release(checkout)
    path = checkout / "proto" / "routing_hints" / "v1" / "service.proto"
    path.write_text(path.read_text().replace("uint32 prompt_tokens = 10;", "uint32 prompt_length = 10;"))
    result = check(checkout)
    assert result.returncode != 0
    assert "prompt_length" in result.stdout + result.stderr
