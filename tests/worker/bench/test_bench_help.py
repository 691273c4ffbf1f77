from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import contextlib, io, sys
from lockstep_worker.__main__ import main
for words in ([], ["serve"], ["sshd"], ["profile"], ["bench"], *(["bench", part] for part in sys.argv[1].split())):
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert text.getvalue().startswith("usage: lockstep-worker"), words
print([name for name in ("torch", "numpy", "mpi4py", "zmq", "tokenizers", "transformers") if name in sys.modules])
"""


def test_help_of_every_command_needs_no_library() -> None:
    command = [sys.executable, "-c", PROGRAM, "update exchange idle loop decode stream serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
