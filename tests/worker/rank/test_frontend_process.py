from __future__ import annotations

import os
import queue
import signal
from pathlib import Path

from lockstep_worker import contract
from lockstep_worker.config import Config
from lockstep_worker.parallel.comm import SingleComm
from lockstep_worker.rank.frontend_child import FrontendProcess
from lockstep_worker.rank.link import LinkAddresses
from support.data import recall_model
from support.worlds.frontend import free_port


def test_the_frontend_is_out_of_the_ranks_process_group_from_its_first_moment(tmp_path: Path) -> None:
    """mpirun sends SIGUSR1, which asks a rank to drain, to the rank's whole process group; it ends who is not ready."""
    model = recall_model.load_recall()
    codes: queue.Queue[int] = queue.Queue()
    config = Config(model=str(recall_model.PATH), port=free_port())
    link = LinkAddresses.share(SingleComm())
    frontend = FrontendProcess(config, link, model, model.max_model_len, on_death=codes.put)
    pid = frontend._process.pid
    try:
        assert os.getpgid(pid) == os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)
        link.remove()
    assert codes.get(timeout=30) == contract.EXIT_FRONTEND
    assert codes.empty()


def test_a_link_can_be_entered_by_its_owner_only() -> None:
    link = LinkAddresses.share(SingleComm())
    assert link.folder.stat().st_mode & 0o777 == 0o700
    link.remove()
    assert not link.folder.exists()
