"""User code that fails in every way there is, in real processes: what is told, and what is left.

After each test no process of the code may be alive, no descriptor open and no folder there.
"""

import contextlib
import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.fault.code_specs import failure, numbers, run, spec_of
from udtf import code_process
from udtf.abi import PARENT
from udtf.code_process import CodeFailed, CodeProcess, have_spare


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = psutil.Process().num_fds()
    # Servers of other tests may run beside, whose processes come and go.
    others = set(psutil.Process().children())
    yield
    assert psutil.Process().num_fds() == before
    assert set(psutil.Process().children()) <= others
    assert not list(tmp_path.glob("destrier-code-*"))


def test_partition_rows_chunks_and_batches_come_back() -> None:
    udtf = "def code(source):\n    yield rows(source.to_arrow().num_rows)\n    yield rows(7, 8)"
    with CodeProcess(spec_of(udtf)) as process:
        assert run(process) == [{"n": 3}, {"n": 7}, {"n": 8}]
        assert run(process, []) == [{"n": 0}, {"n": 7}, {"n": 8}]
    row = "def code(n):\n    return [{'n': i} for i in range(n)]"
    with CodeProcess(spec_of(row, "row")) as process:
        given = [*numbers(0, 2), *numbers(1)]
        expected = [{"n": 0, PARENT: 1}, {"n": 1, PARENT: 1}, {"n": 0, PARENT: 2}]
        assert run(process, given) == expected
    batch = """
        def code(batch):
            yield pa.record_batch({"parent": [1, 0], "n": batch["n"].to_pylist()[::-1]})
    """
    with CodeProcess(spec_of(batch, "batch")) as process:
        found = run(process, [*numbers(10, 20), *numbers(30, 40)])
    assert [(row["n"], row[PARENT]) for row in found] == [(20, 1), (10, 0), (40, 3), (30, 2)]


def test_exception_is_told_with_the_codes_own_lines() -> None:
    source = """
        class Odd(ValueError): pass
        def inner(): raise Odd("bad row 7")
        def code(source):
            for batch in source.to_batches():
                inner()
                yield batch
    """
    failed = failure(source)
    error = failed.error
    assert (error.kind, error.type, error.message) == ("user", "Odd", "bad row 7")
    assert 'def inner(): raise Odd("bad row 7")' in error.traceback
    assert error.traceback.count("File") == 2
    assert "udtf/" not in error.traceback and "abi.py" not in error.traceback
    bases = ("Odd", "udtf_code.Odd", "ValueError", "Exception", "BaseException")
    assert failed.bases == bases
    assert pickle.loads(pickle.dumps(failed)).error == error


def test_code_that_raised_does_the_next_item_in_the_same_process() -> None:
    source = """
        def code(source):
            if source.to_arrow()["n"][0].as_py() == 1: raise KeyError("one")
            yield rows(os.getpid())
    """
    with CodeProcess(spec_of(source)) as process:
        (first,) = run(process, numbers(2))
        with pytest.raises(CodeFailed, match="one"):
            run(process, numbers(1))
        assert run(process, numbers(3)) == [first]


SCRIBBLE = """
def scribble():
    for descriptor in range(3, 4096):
        try: os.write(descriptor, b"x" * 99)
        except OSError: pass
"""


@pytest.mark.parametrize(
    ("body", "kind", "type_", "message"),
    [
        ("import sys; sys.exit(3)", "user", "SystemExit", "3"),
        ("raise KeyboardInterrupt", "user", "KeyboardInterrupt", ""),
        ("raise GeneratorExit('x')", "user", "GeneratorExit", "x"),
        ("raise type('Bad', (Exception,), {'__str__': lambda s: 1 / 0})", "user", "Bad", "str()"),
        ("raise type('Bad', (Exception,), {'__reduce__': 5})(lambda: 0)", "user", "Bad", "lambda"),
        ("raise ValueError('x' * 1_000_000)", "user", "ValueError", "xxx"),
        ("raise ValueError('half \\ud800')", "user", "ValueError", "half \\ud800"),
        ("def f(): f()\n    f()", "user", "RecursionError", "recursion"),
        ("raise MemoryError('full')", "memory", "MemoryError", "full"),
        ("os._exit(3)", "crash", "ProcessCrashed", "ended with exit code 3"),
        ("os._exit(0)", "crash", "ProcessCrashed", "ended with exit code 0"),
        ("os.kill(os.getpid(), 9)", "crash", "ProcessCrashed", "killed by SIGKILL (Killed)"),
        ("os.abort()", "crash", "ProcessCrashed", "killed by SIGABRT (Aborted)"),
        (
            "os.closerange(3, 4096)\n    while True: pass",
            "crash",
            "ProcessCrashed",
            "closed its pipes",
        ),
        (
            "os.kill(os.getppid(), 9)\n    while True: pass",
            "crash",
            "ProcessCrashed",
            "closed its pipes and was killed",
        ),
        ("scribble()", "crash", "ProcessCrashed", "something else than rows"),
    ],
)
def test_way_to_end_becomes_an_error_that_says_so(
    body: str, kind: str, type_: str, message: str
) -> None:
    source = SCRIBBLE + f"def code(source):\n    {body}\n    yield rows(1)"
    failed = failure(source)
    assert (failed.error.kind, failed.error.type) == (kind, type_)
    assert message in failed.error.message
    assert len(failed.error.message) <= 2_000 and len(failed.error.traceback) <= 9_000
    assert type_ in failed.bases


def test_segfault_shows_what_was_printed_and_where() -> None:
    source = """
        import ctypes
        def code(source):
            print("about to read address 0")
            ctypes.string_at(0)
            yield rows(1)
    """
    error = failure(source).error
    assert error.kind == "crash"
    assert "killed by SIGSEGV (Segmentation fault)" in error.message
    assert "about to read address 0" in error.traceback
    assert 'File "<code>"' in error.traceback


def test_process_that_dies_between_two_items_costs_neither() -> None:
    source = """
        def code(source):
            for batch in source.to_batches():
                yield batch
            yield rows(os.getpid())
    """
    with CodeProcess(spec_of(source)) as process:
        first = run(process)[-1]["n"]
        os.kill(first, signal.SIGKILL)
        # Its guard ends a moment later, which is when it is known.
        assert process._child is not None
        while process._child.is_alive():
            time.sleep(0.01)
        *given, second = run(process)
        assert given == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert second["n"] != first


def test_run_after_a_crash_starts_a_new_process() -> None:
    source = """
        def code(source):
            if source.to_arrow()["n"][0].as_py() == 1: os._exit(9)
            yield rows(os.getpid())
    """
    with CodeProcess(spec_of(source)) as process:
        (before,) = run(process, numbers(2))
        with pytest.raises(CodeFailed, match="exit code 9"):
            run(process, numbers(1))
        (after,) = run(process, numbers(2))
    assert before != after


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(1e6)"])
def test_item_that_takes_too_long_is_killed(body: str) -> None:
    source = f"def code(source):\n    print('waiting')\n    {body}\n    yield rows(1)"
    started = time.monotonic()
    failed = failure(source, item_timeout_s=1.5)
    assert time.monotonic() - started < 10
    assert (failed.error.kind, failed.error.type) == ("timeout", "TimeoutError")
    assert "longer than 1.5 s (views.item_timeout_s)" in failed.error.message
    assert "waiting" in failed.error.traceback
    assert "OSError" in failed.bases


def test_code_that_does_not_load_in_time_is_killed() -> None:
    error = failure(
        "import time\ntime.sleep(1e6)\ndef code(source): ...", start_timeout_s=0.5
    ).error
    assert error.kind == "timeout"
    assert "not loaded within 0.5 s (views.code_start_timeout_s)" in error.message


@pytest.mark.parametrize(
    "body",
    [
        "held = []\n    while True: held.append(bytearray(1 << 20))",
        "held = []\n    while True: held.append([object() for _ in range(1000)])",
        "pa.allocate_buffer(1 << 40)",
    ],
)
def test_memory_without_end_is_an_error_of_memory(body: str) -> None:
    source = f"def code(source):\n    {body}\n    yield rows(1)"
    error = failure(source, memory_bytes=1 << 30).error
    assert (error.kind, error.type) in {("memory", "MemoryError"), ("memory", "ArrowMemoryError")}
    assert "File" in error.traceback


def test_memory_too_small_for_python_says_so() -> None:
    error = failure("def code(source): yield rows(1)", memory_bytes=100 << 20).error
    assert error.kind == "memory"
    assert "memory is 104857600 bytes" in error.message


def test_gigabytes_of_prints_neither_block_nor_fill_memory() -> None:
    source = """
        def code(source):
            line = "x" * 999_999
            for _ in range(500): print(line)
            print("the last line")
            yield rows(1)
    """
    before = psutil.Process().memory_info().rss
    with CodeProcess(spec_of(source)) as process:
        assert run(process) == [{"n": 1}]
    assert psutil.Process().memory_info().rss - before < 100 << 20
    assert len(process.printed) == 4_096
    assert process.printed.endswith("the last line\n")


FORKS = """
    import subprocess, sys, time
    def sleeper():
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid
    def daemon():
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(writing, str(os.getpid()).encode())
                time.sleep(1000)
            os._exit(0)
        return int(os.read(reading, 20))
    def forked():
        pid = os.fork()
        if pid == 0: time.sleep(1000)
        return pid
    def code(source):
        yield rows(os.getpid(), os.getppid(), sleeper(), daemon(), forked())
        end()
"""


@pytest.mark.parametrize("end", ["return", "os._exit(1)", "os.kill(os.getpid(), 11)"])
def test_whatever_the_code_started_is_gone_with_it(end: str) -> None:
    source = FORKS.replace("end()", end)
    pids: list[int] = []
    with CodeProcess(spec_of(source)) as process, contextlib.suppress(CodeFailed):
        for batch in process.run(numbers(1)):
            pids += batch.column("n").to_pylist()
            assert not [pid for pid in pids if is_gone(pid)] or end != "return"
    assert len(pids) == 5
    assert [is_gone(pid) for pid in pids] == [True] * 5


def test_forked_copy_that_comes_back_into_the_loop_ends() -> None:
    source = "def code(source):\n    os.fork()\n    yield rows(1)"
    with CodeProcess(spec_of(source)) as process:
        assert run(process) == [{"n": 1}]
        assert run(process) == [{"n": 1}]


def test_everything_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    worker = os.fork()
    if worker == 0:
        try:
            process = CodeProcess(spec_of(FORKS.replace("end()", "time.sleep(1000)")))
            for batch in process.run(numbers(1)):
                os.write(writing, json.dumps(batch.column("n").to_pylist()).encode())
        finally:
            os._exit(1)
    pids = json.loads(os.read(reading, 1_000))
    os.close(reading)
    os.close(writing)
    assert not [pid for pid in pids if is_gone(pid)]
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not (
        all(map(is_gone, pids)) and not list(tmp_path.glob("destrier-code-*"))
    ):
        time.sleep(0.02)
    assert [is_gone(pid) for pid in pids] == [True] * 5
    assert not list(tmp_path.glob("destrier-code-*"))


def test_kill_from_another_thread_ends_an_item_and_all_later_ones() -> None:
    source = "import time\ndef code(source):\n    yield rows(1)\n    time.sleep(1000)"
    with CodeProcess(spec_of(source)) as process:
        found = process.run(numbers(1))
        next(found)
        timer = threading.Timer(0.2, process.kill)
        timer.start()
        with pytest.raises(CodeFailed) as caught:
            next(found)
        timer.join()
        assert (caught.value.error.kind, caught.value.error.type) == ("system", "Stopped")
        with pytest.raises(CodeFailed, match="stopped"):
            run(process)


def test_consumer_that_stops_early_ends_the_process() -> None:
    source = "def code(source):\n    while True: yield rows(os.getpid())"
    with CodeProcess(spec_of(source)) as process:
        found = process.run(numbers(1))
        pid = next(found).column("n")[0].as_py()
        found.close()  # type: ignore[attr-defined]
        assert is_gone(pid)
        assert next(process.run(numbers(1))).column("n")[0].as_py() != pid


def test_error_of_the_source_comes_as_it_is() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from numbers(1)
        raise ConnectionResetError("storage went away")

    with (
        CodeProcess(spec_of("def code(source): yield from source.to_batches()")) as process,
        pytest.raises(ConnectionResetError, match="storage went away"),
    ):
        run(process, broken())


def test_large_streams_go_both_ways_at_once() -> None:
    source = """
        def code(source):
            for batch in source.to_batches():
                yield batch
                yield batch
    """
    rows = 1 << 17
    batches = [pa.record_batch({"n": pa.array(range(i, i + rows))}) for i in range(100)]
    sent = sum(batch.nbytes for batch in batches)
    assert sent >= 100 << 20
    started = time.monotonic()
    with CodeProcess(spec_of(source)) as process:
        found = 0
        for number, batch in enumerate(process.run(iter(batches))):
            assert batch.column("n")[0].as_py() == number // 2
            found += batch.nbytes
    assert found == 2 * sent
    assert time.monotonic() - started < 30


def test_all_rows_may_come_before_any_is_read_and_after_all_are() -> None:
    large = [pa.record_batch({"n": pa.array(range(1 << 18))})] * 16
    eager = "def code(source):\n    for _ in range(64): yield rows(*range(65536))\n"
    with CodeProcess(spec_of(eager)) as process:
        assert sum(batch.num_rows for batch in process.run(large)) == 64 * 65_536
        assert sum(batch.num_rows for batch in process.run(large)) == 64 * 65_536
    late = "def code(source):\n    table = source.to_arrow()\n    yield table\n    yield table"
    with CodeProcess(spec_of(late)) as process:
        assert sum(batch.num_rows for batch in process.run(large)) == 2 * 16 * (1 << 18)


def test_class_is_built_once_with_its_arguments() -> None:
    source = """
        class code:
            built = 0
            def __init__(self, start):
                code.built += 1
                self.calls = start
            def __call__(self, n):
                self.calls += 1
                yield {"n": code.built * 1000 + self.calls}
    """
    with CodeProcess(spec_of(source, "row", envelope={"init": {"start": 10}})) as process:
        assert [row["n"] for row in run(process)] == [1011, 1012, 1013]
        assert [row["n"] for row in run(process)] == [1014, 1015, 1016]


def test_environment_descriptors_and_folder_are_bare(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "RAY_ADDRESS": "auto",
        "DESTRIER_SECURITY__KEY": "k",
        "PYTHONPATH": "/x",
        "MODE": "fast",
    }
    for name, value in (secrets | {"CUDA_VISIBLE_DEVICES": "2"}).items():
        monkeypatch.setenv(name, value)
    source = """
        import json, sys
        def code(source):
            found = {
                "environment": dict(os.environ),
                "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
                "stdin": sys.stdin.read(),
                "folder": os.getcwd(),
                "files": os.listdir("."),
                "leads": os.getsid(0) == os.getpid(),
                "argv": sys.argv[1:],
                "modules": [m for m in sys.modules if m.split(".")[0] in ("ray", "lance", "daft")],
            }
            open("left", "w").write("x")
            os.makedirs("deep/er"); os.chmod("deep", 0)
            yield pa.record_batch({"text": [json.dumps(found)]})
    """
    spec = spec_of(source, output=pa.schema([("text", pa.string())]), variables=("MODE", "NOT_SET"))
    with CodeProcess(spec) as process:
        found = json.loads(run(process)[0]["text"])
        folder = Path(found["folder"])
        assert (folder / "left").exists()
    environment = found["environment"]
    assert environment.pop("HOME") == environment.pop("TMPDIR") == str(folder)
    assert environment.pop("MODE") == "fast"
    assert environment.pop("CUDA_VISIBLE_DEVICES") == "2"
    # LC_CTYPE is what Python itself sets where there is no locale.
    allowed = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"}
    assert set(environment) <= allowed
    # Three standard ones, two pipes, and the folder that is being listed.
    assert len(found["descriptors"]) == 6
    assert found["stdin"] == "" and found["files"] == [] and found["leads"]
    assert found["argv"] == [] and found["modules"] == []
    assert not folder.exists()


def test_a_spare_process_gets_the_next_code_if_it_is_as_that_needs_it() -> None:
    usual = spec_of("def code(source):\n    yield rows(os.getpid())", memory_bytes=4 << 30)
    have_spare()
    have_spare()
    (spare,) = code_process._spare
    # Without a bound of memory it has another allocator.
    with CodeProcess(replace(usual, memory_bytes=None)) as process:
        other = run(process)
    with CodeProcess(usual) as process:
        first = run(process)
        assert process._child is spare.child
    assert code_process._spare == []
    with CodeProcess(usual) as process:
        assert run(process) not in (first, other)


def test_a_spare_process_that_died_costs_no_item() -> None:
    have_spare()
    (spare,) = code_process._spare
    spare.child.kill()
    while spare.child.is_alive():
        time.sleep(0.01)
    usual = spec_of("def code(source):\n    yield rows(1)", memory_bytes=4 << 30)
    with CodeProcess(usual) as process:
        assert run(process) == [{"n": 1}]
        assert process._child is not spare.child


def test_a_process_that_has_code_is_named_so() -> None:
    code = """
        def code(source):
            yield rows(len(open("/proc/self/comm").read().partition("destrier-code")[1]))
    """
    with CodeProcess(spec_of(code)) as process:
        assert run(process) == [{"n": len("destrier-code")}]
