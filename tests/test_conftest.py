"""T2R_STRICT=1 turns skips into failures; --quick runs a part of the tests; data is read where it is named."""

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
    markers = "\n    gpu: needs a CUDA device\n    slow: not quick\n"
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).parent}\nmarkers ={markers}")
    for name in ("T2R_DATA", "T2R_TURN"):  # of the run that these tests are part of
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return pytester


@pytest.mark.slow
def test_skips_are_skips(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("T2R_STRICT", raising=False)
    inner.makepyfile(SKIPS)
    result = inner.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)


@pytest.mark.slow
def test_strict_skips_are_failures(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T2R_STRICT", "1")
    inner.makepyfile(SKIPS)
    result = inner.runpytest_subprocess("-rs")
    # skipped in the body: failed; by a mark: an error; no GPU: the one allowed skip
    result.assert_outcomes(passed=1, failed=1, errors=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*T2R_STRICT=1 allows no skip here: *no weather today"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_strict_module_that_skips_itself(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T2R_STRICT", "1")
    inner.makepyfile("import pytest\npytest.importorskip('no_such_module_of_ours')\ndef test_one(): pass\n")
    result = inner.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*T2R_STRICT=1 allows no skip here: *no_such_module_of_ours*"])
    assert result.ret != pytest.ExitCode.OK


CASES = """
    import pytest

    @pytest.mark.parametrize("case", range(40))
    def test_many(case):
        pass

    @pytest.mark.slow
    def test_long():
        pass

    @pytest.mark.slow
    def test_longer():
        pass

    def test_public(data):
        assert (data / "checkpoints").is_dir()
"""


@pytest.fixture
def selecting(inner: pytest.Pytester) -> pytest.Pytester:
    """The hooks of selection alone, without torch."""
    inner.makeconftest("from selection import data, pytest_addoption, pytest_collection_modifyitems")
    inner.makepyfile(CASES)
    return inner


def test_quick_runs_every_test_but_slow_ones(selecting: pytest.Pytester) -> None:
    found = selecting.runpytest_subprocess("--quick", "--collect-only", "-q").outlines
    cases = [int(line.split("[")[1][:-1]) for line in found if "test_many" in line]
    assert cases[0] == 0 and cases == sorted(set(cases)) and 2 <= len(cases) <= 8
    assert not any("test_long" in line or "test_public" in line for line in found)
    found = selecting.runpytest_subprocess("--rest", "--collect-only", "-q").outlines
    rest = [int(line.split("[")[1][:-1]) for line in found if "test_many" in line]
    assert sorted([*cases, *rest]) == list(range(40))
    assert any("test_long" in line for line in found)
    selecting.runpytest_subprocess().assert_outcomes(passed=42, deselected=1)


@pytest.mark.slow
def test_turns_run_the_rest_once(selecting: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*options: str) -> list[str]:
        lines = selecting.runpytest_subprocess(*options, "--collect-only", "-q").outlines
        return [line for line in lines if "::" in line]

    quick, rest = found("--quick"), found("--rest")
    turns, wholes = [], []
    for place in range(3):
        monkeypatch.setenv("T2R_TURN", f"{place}/3")
        turns.append(found("--rest"))
        wholes.append(found())
    assert all(turns) and sorted(sum(turns, [])) == sorted(rest)
    assert all(sorted(whole) == sorted([*quick, *turn]) for whole, turn in zip(wholes, turns, strict=True))
    # tests without cases share what their file makes
    assert [sum("test_long" in line for line in turn) for turn in turns].count(2) == 1


def test_public_data_is_read_where_it_is_named(
    selecting: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    public = "test_public_data_is_read_where_it_is_named.py::test_public"
    monkeypatch.setenv("T2R_DATA", str(tmp_path))
    selecting.runpytest_subprocess(public).assert_outcomes(errors=1)
    (tmp_path / "checkpoints").mkdir()
    selecting.runpytest_subprocess(public).assert_outcomes(passed=1)
