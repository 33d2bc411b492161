"""T2R_STRICT=1 turns skips into failures."""

from __future__ import annotations

from pathlib import Path

import pytest

SKIPS = """
    import pytest

    def test_runs():
        pass

    def test_skips():
        pytest.skip("no weather today")

    @pytest.mark.skip(reason="never written")
    def test_marked():
        pass

    def test_data(data):
        pass

    @pytest.mark.xfail
    def test_known():
        assert False

    @pytest.mark.gpu
    def test_gpu():
        pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers =\n    gpu: needs a CUDA device\n")
    monkeypatch.setenv("T2R_DATA", "/nowhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return pytester


def test_skips_are_skips(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("T2R_STRICT", raising=False)
    inner.makepyfile(SKIPS)
    result = inner.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=4, xfailed=1)
    result.stdout.fnmatch_lines(["*no test data in /nowhere; set T2R_DATA"])


def test_strict_skips_are_failures(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T2R_STRICT", "1")
    inner.makepyfile(SKIPS)
    result = inner.runpytest_subprocess("-rs")
    # skipped in the body and by a mark: failed; in a fixture: an error; no GPU: the one allowed skip
    result.assert_outcomes(passed=1, failed=1, errors=2, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*T2R_STRICT=1 allows no skip here: *no weather today"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_strict_module_that_skips_itself(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T2R_STRICT", "1")
    inner.makepyfile("import pytest\npytest.importorskip('no_such_module_of_ours')\ndef test_one(): pass\n")
    result = inner.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*T2R_STRICT=1 allows no skip here: *no_such_module_of_ours*"])
    assert result.ret != pytest.ExitCode.OK
