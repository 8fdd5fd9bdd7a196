"""Commands with streams that are closed, full, or of an encoding that lacks a character."""

import io
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout, suppress

import pytest

from coterie.core.cli.main import main

COTERIE = [
    sys.executable,
    "-c",
    "import sys; from coterie.core.cli.main import main; sys.exit(main())",
]


def whole(words):
    """What a command prints, said in this process, which has imported what it needs."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main(words.split())
    return printed.getvalue()


def run(words, redirections="", **environment):
    """Run in a shell, which closes streams as daemons do."""
    line = f"{shlex.join([*COTERIE, *words.split()])} {redirections}"
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, env=os.environ | environment, check=False
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("train f3crec --help", "ascii"),
        ("sweep --help", "latin-1"),
        ("list", "ascii:strict"),
        ("table f3crec --help", "cp1252"),
        ("list", "iso8859-7"),
    ],
)
def test_what_an_encoding_lacks_is_replaced(words, encoding):
    found = run(words, PYTHONIOENCODING=encoding)
    assert (found.returncode, found.stderr) == (0, b"")
    text = whole(words)
    assert len(found.stdout.decode(encoding.split(":")[0]).split()) == len(text.split())


def test_the_locale_c_does_not_end_a_command():
    found = run("train f3crec --help", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (found.returncode, found.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed):
    found = run("list", closed)
    assert found.returncode == 0
    assert found.stderr == b""
    assert bool(found.stdout) == (">&- " not in f"{closed} ".replace("2>&-", ""))


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    """Else whatever writes to standard output writes into it."""
    code = (
        "import os, sys; from coterie.core.cli.main import prepare_streams; prepare_streams();"
        "file = open(sys.argv[1], 'w'); assert file.fileno() > 2;"
        "os.write(1, b'lost'); print('lost'); assert not sys.stdout.isatty(); sys.stdin.read()"
    )
    line = shlex.join([sys.executable, "-c", code, str(tmp_path / "a")]) + " <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 0
    assert (tmp_path / "a").read_bytes() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["list", "--help"])
def test_a_full_disk_below_the_output_is_one_line_at_the_end(words):
    found = run(words, "> /dev/full")
    assert found.returncode == 2
    assert found.stderr.decode() == (
        "coterie: error: a part of the output is lost, cannot write to standard output "
        "(no space left on device)\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_below_the_messages_ends_nothing():
    assert run("list", "2> /dev/full").returncode == 0
    assert run("lisst", "2> /dev/full").returncode == 2


def test_a_folder_that_was_deleted_is_one_line(tmp_path):
    line = f"cd {tmp_path}/here && rmdir ../here && {shlex.join([*COTERIE, 'list'])}"
    (tmp_path / "here").mkdir()
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        "coterie: error: the working directory is gone: cd into one that is there"
    )
    assert shutil.which("bash")
